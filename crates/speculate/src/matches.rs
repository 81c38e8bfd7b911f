//! Places where the last tokens of a text stood before, and what most of them say comes next.

use protocol::TokenId;

use crate::options::LookupOptions;

/// Places of a match that are looked at, the newest first.
pub(crate) const CANDIDATES: usize = 8;
/// Places that are looked at for these: others have the same hash.
pub(crate) const VISITS: usize = 32;

/// How long a match must be and how much is drafted from it.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    max_drafts: usize,
    pub(crate) least_match: usize,
    pub(crate) most_match: usize,
    most_depth: usize,
    drafts_per_match: f64,
    least_share: f64,
}

impl Bounds {
    pub(crate) fn new(max_drafts: usize, options: &LookupOptions) -> Bounds {
        let &LookupOptions { least_match, most_match, most_depth, drafts_per_match, least_share, .. } = options;
        // Comparing more than this would leave fewer drafts.
        let most_match = most_match.min(most_depth.saturating_sub(max_drafts)).max(least_match);
        Bounds { max_drafts, least_match, most_match, most_depth, drafts_per_match, least_share }
    }

    /// Drafts behind a match of `matched` tokens at most.
    pub(crate) fn num_drafts(&self, matched: usize) -> usize {
        let by_match = (matched as f64 * self.drafts_per_match) as usize;
        self.max_drafts.min(self.most_depth.saturating_sub(matched)).min(by_match)
    }
}

/// Tokens before two places that are the same, up to `most`.
pub(crate) fn same(a: &[TokenId], b: &[TokenId], most: usize) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(most).take_while(|(a, b)| a == b).count()
}

/// A place where the last tokens stood before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Candidate {
    /// Where the next one is.
    pub(crate) behind: u64,
    /// How many before that are the same.
    pub(crate) same: usize,
    /// It says nothing from here on.
    pub(crate) ends_at: u64,
}

/// What most of the candidates, the newest first, say one token after the other, behind `drafts`; those that say
/// something else drop out. `said`: the token of a place, after the drafts up to there. Returns the longest match, if
/// there is any draft.
pub(crate) fn vote(
    candidates: &mut [Candidate],
    bounds: &Bounds,
    said: impl Fn(u64, &[TokenId]) -> TokenId,
    drafts: &mut Vec<TokenId>,
) -> Option<usize> {
    let longest = candidates.iter().map(|candidate| candidate.same).max()?;
    let (start, all) = (drafts.len(), candidates.len());
    let (most, mut count) = (bounds.num_drafts(longest), all);
    while drafts.len() - start < most {
        let so_far = &drafts[start..];
        let says = |candidate: &Candidate| {
            let at = candidate.behind + so_far.len() as u64;
            (at < candidate.ends_at).then(|| said(at, so_far))
        };
        // Mostly they agree.
        if let Some(token) = says(&candidates[0])
            && candidates[1..count].iter().all(|candidate| says(candidate) == Some(token))
        {
            drafts.push(token);
            continue;
        }
        // What each says; tokens, the newest first, and how long the matches are that say them.
        let (mut said, mut sums, mut different) = ([None; CANDIDATES], [(0, 0); CANDIDATES], 0);
        for (said, candidate) in said.iter_mut().zip(&candidates[..count]) {
            let Some(token) = says(candidate) else { continue };
            *said = Some(token);
            match sums[..different].iter_mut().find(|sum| sum.0 == token) {
                Some(sum) => sum.1 += candidate.same,
                None => {
                    sums[different] = (token, candidate.same);
                    different += 1;
                }
            }
        }
        // The newest of equals.
        let Some(&(token, _)) = sums[..different].iter().rev().max_by_key(|sum| sum.1) else { break };
        let mut kept = 0;
        for (index, said) in said[..count].iter().enumerate() {
            if *said == Some(token) {
                if kept < index {
                    candidates.swap(kept, index);
                }
                kept += 1;
            }
        }
        if (kept as f64) < bounds.least_share * all as f64 {
            break;
        }
        count = kept;
        drafts.push(token);
    }
    (drafts.len() > start).then_some(longest)
}

/// The slot of a hash; the table's length is a power of two.
pub(crate) fn slot(tokens: &[TokenId], seed: u64, slots: usize) -> usize {
    let hash = tokens
        .iter()
        .fold(seed, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    hash as usize & (slots - 1)
}
