//! What the prefix cache saved, beside a cache of the same size that knows which prompts will come.
//!
//! ```text
//! prompts, by arrival    A B A C B A        the blocks of a prompt are kept for the next prompt that begins with them
//! kept for the 2nd A     [===]              too many: the chain whose mean cost per block, by the prompts until then,
//! kept for the 2nd B       [=======]        is least loses its last block
//! ```
//!
//! Where all blocks cost the same that is Belady's rule, which is optimal. Where they do not it is a heuristic, and no
//! bound in either direction; so the optimum counts as no less than what was saved. Costs are those of computing the
//! prefix alone, by the cost model. A block that was hit and is of no earlier prompt (the cache had it before, or it is
//! of an answer) counts on both sides. Blocks of answers and of prompts that run beside one take no room here, and a
//! prompt finds what came before it also where that was still computed: the real cache has it harder.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use protocol::RequestId;
use scheduler::{CostModel, Work};

use crate::run_history::PastAnswer;

/// Prompts that are looked at, and blocks of them: about a millisecond.
pub const PROMPTS: usize = 256;
const BLOCKS: usize = 1 << 14;

/// Names of the full blocks of a prompt, how many of them it may find, and how many it found.
struct Prompt {
    names: Vec<u64>,
    most: usize,
    found: usize,
}

impl Prompt {
    fn of(past: &PastAnswer, block_size: usize) -> Prompt {
        let blocks = past.request.prompt.iter();
        let tokens: usize = blocks.clone().map(|block| block.len).sum();
        let names: Vec<u64> = blocks.take(tokens / block_size).map(|block| block.name).collect();
        // The last token is always computed.
        Prompt {
            most: tokens.saturating_sub(1) / block_size,
            found: (past.cached_tokens / block_size).min(names.len()),
            names,
        }
    }
}

/// Seconds that this number of tokens of a prompt takes in one step; without a model of costs a token is as good as another.
pub fn price(cost: Option<&CostModel>) -> impl Fn(usize) -> f64 {
    move |tokens| {
        let mut work = Work::default();
        work.add_chunk(0, tokens, false);
        let seconds = cost.map_or(tokens as f64, |cost| cost.seconds(&work));
        if tokens > 0 { seconds } else { 0.0 }
    }
}

/// Share of the optimum that the cache saved of the newest of these; `None` if there was nothing to save. `blocks`: what
/// the cache holds. `price`: of computing that many tokens of a prompt.
pub fn saved_of_optimum(
    answers: &[Arc<PastAnswer>],
    [blocks, block_size]: [usize; 2],
    price: &dyn Fn(usize) -> f64,
) -> Option<f64> {
    let by_request: BTreeMap<RequestId, &PastAnswer> = answers.iter().map(|past| (past.request.id, &**past)).collect();
    let mut past: Vec<&PastAnswer> = by_request.into_values().collect();
    past.sort_by_key(|past| past.request.arrived);
    let mut room = BLOCKS;
    let newest = past.iter().rev().take(PROMPTS).map(|past| Prompt::of(past, block_size)).take_while(|prompt| {
        room = room.saturating_sub(prompt.names.len());
        room > 0
    });
    let mut prompts: Vec<Prompt> = newest.collect();
    prompts.reverse();
    let longest = prompts.iter().map(|prompt| prompt.names.len()).max()?;
    let prices: Vec<f64> = (0..=longest).map(|count| price(count * block_size)).collect();
    let saved: f64 = prompts.iter().map(|prompt| prices[prompt.found]).sum();
    let optimum = optimum(&prompts, blocks, &prices).max(saved);
    (optimum > 0.0).then(|| saved / optimum)
}

/// `prices`: by the number of blocks.
fn optimum(prompts: &[Prompt], blocks: usize, prices: &[f64]) -> f64 {
    // For each block of each prompt, the last first, the next prompt that has it.
    let mut uses: HashMap<u64, usize> = HashMap::new();
    let next = |(at, prompt): (usize, &Prompt)| prompt.names.iter().map(|&name| uses.insert(name, at)).collect();
    let mut next: Vec<Vec<Option<usize>>> = prompts.iter().enumerate().rev().map(next).collect();
    // What is kept for a later prompt: which of its blocks.
    let mut kept: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let (mut known, mut saved) = (HashSet::<u64>::new(), 0.0);
    for (at, prompt) in prompts.iter().enumerate() {
        let mine = kept.remove(&at).unwrap_or_default();
        let is_hit =
            |depth: &usize| mine.contains(depth) || *depth < prompt.found && !known.contains(&prompt.names[*depth]);
        saved += prices[(0..prompt.most).take_while(is_hit).count()];
        evict(&mut kept, at, blocks.saturating_sub(prompt.names.len()), prices);
        known.extend(&prompt.names);
        for (depth, next) in next.pop().unwrap_or_default().into_iter().enumerate().take(blocks) {
            next.into_iter().for_each(|next| _ = kept.entry(next).or_default().insert(depth));
        }
    }
    saved
}

/// Leaves no more than `room` blocks.
fn evict(kept: &mut BTreeMap<usize, BTreeSet<usize>>, at: usize, room: usize, prices: &[f64]) {
    let mut over = kept.values().map(BTreeSet::len).sum::<usize>().saturating_sub(room);
    if over == 0 {
        return;
    }
    let worth = |next: usize, chain: &BTreeSet<usize>| {
        let price: f64 = chain.iter().map(|&depth| prices[depth + 1] - prices[depth]).sum();
        price / chain.len().max(1) as f64 / (next - at) as f64
    };
    let mut chains: Vec<(f64, &mut BTreeSet<usize>)> =
        kept.iter_mut().map(|(&next, chain)| (worth(next, chain), chain)).collect();
    chains.sort_by(|one, other| one.0.total_cmp(&other.0));
    for (_, chain) in chains {
        while over > 0 && chain.pop_last().is_some() {
            over -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Nanos, Priority, Targets};

    use super::*;
    use crate::run_history::{PastRequest, PromptBlock};

    /// Prompts of blocks of ten tokens and a token more, and how many of them each found.
    fn share(prompts: &[(&str, usize)], blocks: usize, price: &dyn Fn(usize) -> f64) -> Option<f64> {
        let answer = |(at, &(names, found)): (usize, &(&str, usize))| {
            let of_prefix = |end: usize| names[..end].bytes().fold(7, |name, byte| name * 31 + u64::from(byte));
            let mut prompt: Vec<_> =
                (1..=names.len()).map(|end| PromptBlock { name: of_prefix(end), len: 10 }).collect();
            prompt.push(PromptBlock { name: at as u64, len: 1 });
            let (id, arrived) = (RequestId(at as u64), Nanos(at as u64));
            let (priority, tenant, targets) = (Priority(0), 0, Targets::default());
            let request = PastRequest { id, prompt: prompt.into(), priority, tenant, targets, arrived };
            let (first_token, last_token, longest_gap) = (arrived, arrived, Nanos(0));
            let (index, tokens, cached_tokens, drafts) = (0, 1, found * 10, Vec::new());
            Arc::new(PastAnswer { request, index, tokens, cached_tokens, first_token, last_token, longest_gap, drafts })
        };
        let answers: Vec<_> = prompts.iter().enumerate().map(answer).collect();
        saved_of_optimum(&answers, [blocks, 10], price)
    }

    #[test]
    fn what_was_saved_stands_beside_what_could_have_been() {
        let even = |tokens: usize| tokens as f64;
        let uneven = |tokens: usize| (tokens * tokens) as f64;
        type Row<'a> = (&'a str, &'a [(&'a str, usize)], usize, &'a dyn Fn(usize) -> f64, Option<f64>);
        let rows: [Row<'_>; 9] = [
            ("nothing came", &[], 4, &even, None),
            ("nothing came again", &[("ab", 0), ("cd", 0)], 4, &even, None),
            ("all was found", &[("ab", 0), ("ab", 2)], 4, &even, Some(1.0)),
            ("half was found", &[("ab", 0), ("ab", 1)], 4, &even, Some(0.5)),
            // The least recently used goes each time; with foresight two of the three are hits.
            ("a circle", &[("a", 0), ("b", 0), ("c", 0), ("a", 0), ("b", 0), ("c", 0)], 2, &even, Some(0.0)),
            ("a circle, one kept", &[("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 0), ("c", 0)], 2, &even, Some(0.5)),
            // Of an answer, or from before: found, though no prompt has brought it.
            ("found without a prompt", &[("abc", 2), ("abc", 3)], 4, &even, Some(1.0)),
            // The heavier chain is worth the room, though the other is needed sooner.
            ("costs", &[("abcd", 0), ("x", 0), ("x", 1), ("abcd", 0)], 4, &uneven, Some(1.0 / 10.0)),
            ("no room", &[("ab", 0), ("ab", 0)], 0, &even, None),
        ];
        for (name, prompts, blocks, price, wanted) in rows {
            assert_eq!(share(prompts, blocks, price), wanted, "{name}");
        }
    }
}
