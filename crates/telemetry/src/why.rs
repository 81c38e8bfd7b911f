//! Where a request's time went, in words: what a timeline says as numbers, told in a few sentences.
//!
//! ```text
//! Timeline --tell--> "The first token came after 2.31 s: 1.90 s in the queue, 410 ms of prefill."
//!                    "Of that: 1.71 s in the queue while others had the step's rows and time (74 %), ..."
//!                    "Of other requests, chatcmpl-3 (1.20 s) and chatcmpl-7 (310 ms) delayed its first token most."
//!                    "What helps: ..."
//! ```
//!
//! A function of the timeline and of names, and nothing else: the timeline's route, the slow log, the page and
//! `twostroke why` say the same words.

use engine::ledger::{Account, Cost, Gap, Named, Owner, Shares};
use engine::{Ending, HandoffOutcome, RemotePrefillTrace, RequestId, Timeline};
use plan::units::duration;
use protocol::Nanos;
use scheduler::{CacheMiss, MissReason};

/// Owners that a sentence names.
const MOST_OWNERS: usize = 4;
/// Others that a sentence names.
const MOST_OTHERS: usize = 3;
/// What has a smaller share of a time is not told.
const LEAST_SHARE: f64 = 0.02;
/// Owners with a smaller share of a time get no advice.
const LEAST_ADVISED: f64 = 0.25;
/// Of a prompt that is new from its first token.
const NOTHING_SEEN: &str = "Nothing of its prompt was seen before, as far as is remembered.";
/// For which requests blocks were evicted, to others.
pub(crate) const OTHER_TENANT: &str = "another tenant's request";
/// What others waited for it is told from so much on.
const LEAST_COST: Nanos = Nanos(1_000_000);

/// What an owner did, as the end of "so long ...".
fn words(owner: &str) -> &str {
    match owner {
        "queue_kv" => "waiting for KV blocks",
        "queue_seats" => "waiting for a seat among the running sequences",
        "queue_budget" => "in the queue while others had the step's rows and time",
        "own_prefill" => "reading its own prompt",
        "other_prefill" => "prompts of others in the same steps",
        "own_decode" => "computing its own tokens",
        "own_drafts" => "checking its drafts",
        "decode" => "tokens of others in the same steps",
        "other_drafts" => "drafts of others in the same steps",
        "recompute" => "computing again what a preemption threw away",
        "waiting" => "preempted, waiting to be let in again",
        "left_out" => "left out of steps, for others' targets or for lack of a block",
        "machine" => "the cores computed something else",
        "expert_reads" => "reading experts that were not in memory",
        "other_model" => "another model of this server had the cores",
        "overhead" => "between steps: planning, text, delivery",
        "remote_queue" => "in the queue of the worker that read its prompt",
        "remote_prefill" => "another worker reading its prompt, and between its steps",
        "remote_others" => "others in the same steps of that worker",
        "remote_machine" => "the cores of that worker computed something else",
        "transfer" => "asking another worker and KV blocks on their way, or everything going to another device",
        other => other,
    }
}

/// What to do about it.
fn advice(owner: &str) -> Option<&'static str> {
    Some(match owner {
        "queue_kv" => "more KV cache (--kv-cache-memory-bytes, --kv-dtype int8) or shorter contexts",
        "queue_seats" => "more sequences at once (--max-num-seqs)",
        "queue_budget" => {
            "fewer requests at once, a later TPOT target (--tpot-slo: larger means faster prompts), or more machines"
        }
        "own_prefill" => "a shorter prompt, or one that begins as an earlier one did (prefix cache)",
        "other_prefill" => {
            "an earlier TPOT target (--tpot-slo): prompts are then read in smaller chunks beside streams"
        }
        "decode" => "fewer sequences at once (--max-num-seqs)",
        "other_drafts" => "an earlier TPOT target (--tpot-slo): drafts then leave more time to others",
        "recompute" | "waiting" => {
            "more KV cache (--kv-cache-memory-bytes), host memory for preempted requests (--kv-swap-memory), \
             or fewer sequences (--max-num-seqs)"
        }
        "left_out" => "more KV cache, or a later TPOT target",
        "expert_reads" => "more memory for experts (--expert-memory), or a faster disk",
        "other_model" => "a server of its own for one of the models, or a tighter TPOT target (--tpot-slo)",
        "machine" => "fewer other programs on these cores, or fewer threads (-t)",
        "remote_queue" => "more workers that read prompts (--prefill-workers)",
        "remote_machine" => "fewer other programs on that worker's cores, or fewer threads there (-t)",
        "transfer" => "a faster network between the workers; a device that is not lost",
        _ => return None,
    })
}

/// The message in which a token of the prompt is.
type InMessage<'a> = &'a dyn Fn(usize) -> Option<usize>;

/// The story of one prompt. `name`: how its reader knows another request; `other_models`: a sentence about what their requests
/// took.
pub fn tell(
    timeline: &Timeline,
    message: InMessage<'_>,
    name: &dyn Fn(RequestId) -> String,
    other_models: Option<String>,
) -> Vec<String> {
    let Timeline { account, ending, until, held, away } = timeline;
    let mut story = vec![first_token(account, *ending, *until)];
    story.extend(away.as_ref().and_then(|away| read_elsewhere(away, *until)));
    story.extend(account.bill.miss.and_then(|miss| not_cached(&miss, account.arrived, message, name)));
    story.extend(parts("Of that: ", &account.bill.ttft, account.bill.uncertain[0]));
    let ttft = &account.bill.ttft;
    story.extend(delayed("delayed its first token most", &account.bill.ttft_others, ttft, name));
    if account.num_tokens() > account.answers().filter(|answer| answer.tokens > 0).count() {
        story.extend(gaps(account, name));
    }
    story.extend(other_models);
    story.extend(cost(&account.bill.cost));
    if *held > Nanos(0) {
        story.push(format!("The engine was paused for {} meanwhile; no other time includes that.", time(*held)));
    }
    if account.preemptions > 0 {
        story.push(format!("It lost its KV blocks {} and was computed again.", times(account.preemptions)));
    }
    match (ending, account.first_token) {
        (Some(Ending::Cancelled), _) => story.push(format!("Its client left {} after it came.", span(account, *until))),
        (Some(Ending::Failed), _) => {
            story.push(format!("It ended with an error {} after it came.", span(account, *until)))
        }
        (None, Some(_)) => story.push(format!("It runs; its last token came {} ago.", since_last(account, *until))),
        _ => {}
    }
    story.extend(helps(account));
    story
}

/// When the first token came, and in which phases.
fn first_token(account: &Account, ending: Option<Ending>, until: Nanos) -> String {
    let queue = |to: Nanos| time(to.since(account.arrived));
    let prompt = match account.cached_tokens {
        0 => format!("{} prompt tokens", account.prompt_tokens),
        cached => format!("{} prompt tokens, {cached} of them cached", account.prompt_tokens),
    };
    match (account.first_scheduled, account.first_token) {
        (Some(scheduled), Some(first)) => format!(
            "The first token came after {}: {} in the queue, {} of prefill ({prompt}).",
            span(account, first),
            queue(scheduled),
            time(first.since(scheduled)),
        ),
        (scheduled, None) => {
            let verb = if ending.is_some() { "No token came: it" } else { "It waits for its first token: it" };
            let phases = match scheduled {
                Some(scheduled) => {
                    format!("was {} in the queue and {} in prefill", queue(scheduled), time(until.since(scheduled)))
                }
                None => format!("was {} in the queue", queue(until)),
            };
            format!("{verb} {phases} ({prompt}).")
        }
        (None, Some(_)) => unreachable!("a token comes of a step"),
    }
}

/// Who else read its prompt, and how that went.
fn read_elsewhere(away: &RemotePrefillTrace, until: Nanos) -> Option<String> {
    let worker = away.worker.as_ref()?;
    let spent = time(away.to.unwrap_or(until).since(away.from));
    let blocks = counted(away.received.last().map_or(0, |&(_, blocks)| blocks), "KV block");
    let steps = match &away.steps[..] {
        [] => String::new(),
        steps => format!(", in {}", counted(steps.len(), "step")),
    };
    Some(match away.outcome {
        None => format!("The worker at {worker} reads its prompt since {spent}; {blocks} came so far."),
        Some(HandoffOutcome::Whole) => {
            format!("The worker at {worker} read its prompt{steps}; {blocks} came within {spent}.")
        }
        Some(HandoffOutcome::InPart | HandoffOutcome::Lost | HandoffOutcome::Refused) => format!(
            "The worker at {worker} began to read its prompt{steps}; {blocks} came within {spent}, and the rest was \
             computed here."
        ),
        Some(HandoffOutcome::Slower | HandoffOutcome::Cancelled) => return None,
    })
}

/// Why no more of the prompt was cached.
fn not_cached(
    miss: &CacheMiss,
    arrived: Nanos,
    message: InMessage<'_>,
    name: &dyn Fn(RequestId) -> String,
) -> Option<String> {
    let by = miss.by.map(name).or(miss.by_other_tenant.then(|| OTHER_TENANT.to_owned()));
    let for_request = by.as_ref().map_or_else(String::new, |by| format!(" for {by}"));
    let when = miss.at.map_or_else(String::new, |at| format!(" {} before it came", time(arrived.since(at))));
    let why = match miss.why {
        MissReason::AllFound => return None,
        MissReason::New if miss.at_token == 0 => return Some(NOTHING_SEEN.to_owned()),
        MissReason::New => "; from there on it is new, as far as the server remembers".to_owned(),
        MissReason::OtherToken => ", where another token stood".to_owned(),
        MissReason::OtherSalt => " with another cache_salt or adapter, whose blocks are not shared".to_owned(),
        MissReason::Evicted => format!(", and evicted{for_request}{when}"),
        MissReason::BlockNotFull => ", and the last tokens of that do not fill a KV block".to_owned(),
        MissReason::NoCheckpoint => {
            ", and no state of the layers that keep one was left at the end of what is found".to_owned()
        }
        MissReason::TierFault => ", and the tier that had it could not be read".to_owned(),
        MissReason::NotWorthLoading => ", and computing it was predicted to be faster than loading it".to_owned(),
        MissReason::InProgress => format!(" by {}, which was computing it", by.unwrap_or_default()),
        MissReason::OffForIt => ", and it asks for what the prefix cache does not keep".to_owned(),
        MissReason::Off => ", and the prefix cache is off".to_owned(),
    };
    let cost = miss.cost.map_or_else(|| "not known".to_owned(), |cost| format!("{} as predicted", time(cost)));
    let lost = format!(" That cost {} of prefill: {cost}.", counted(miss.lost, "token"));
    Some(format!(
        "Its prompt was seen before up to token {}{}{why}.{}",
        miss.at_token,
        message(miss.at_token).map_or_else(String::new, |at| format!(" (in messages[{at}])")),
        if miss.lost > 0 { &lost } else { "" }
    ))
}

/// Whose time it was, the largest first.
fn parts(begin: &str, shares: &Shares, uncertain: Nanos) -> Option<String> {
    let total = shares.total();
    let told = largest(shares).into_iter().filter(|&(_, nanos)| share(nanos, total) >= LEAST_SHARE).take(MOST_OWNERS);
    let part = |(owner, nanos): (Owner, Nanos)| {
        format!("{} {} ({:.0} %)", time(nanos), words(owner.name()), share(nanos, total) * 100.0)
    };
    let told: Vec<String> = told.map(part).collect();
    let is_certain = share(uncertain, total) < LEAST_SHARE;
    let within = format!("; what others took of the cores is known to within {}", time(uncertain));
    (!told.is_empty()).then(|| format!("{begin}{}{}.", told.join(", "), if is_certain { "" } else { &within }))
}

/// What others waited for it, if it is worth telling.
fn cost(cost: &Cost) -> Option<String> {
    let sum = |parts: &[Nanos]| Nanos(parts.iter().map(|part| part.0).sum());
    let parts = [
        (sum(&[cost.queue_kv, cost.queue_seats, cost.queue_budget]), "in the queue"),
        (sum(&[cost.prefill_in_ttfts, cost.prefill_in_gaps]), "for its prompt"),
        (sum(&[cost.decode_in_ttfts, cost.decode_in_gaps]), "for its answer"),
        (sum(&[cost.drafts_in_ttfts, cost.drafts_in_gaps]), "for its drafts"),
        (sum(&[cost.waiting, cost.left_out]), "preempted or left out"),
    ];
    let told = parts.into_iter().filter(|&(nanos, _)| share(nanos, cost.total()) >= LEAST_SHARE);
    let told: Vec<String> = told.map(|(nanos, what)| format!("{} {what}", time(nanos))).collect();
    let is_worth = cost.total() >= LEAST_COST;
    is_worth.then(|| format!("Others waited {} for it: {}.", time(cost.total()), listed(&told)))
}

/// The others that have a share of a time worth telling.
fn delayed(what: &str, others: &Named, of: &Shares, name: &dyn Fn(RequestId) -> String) -> Option<String> {
    let total = of.total();
    let entries: Vec<(RequestId, Nanos)> =
        others.entries().filter(|&(_, nanos)| share(nanos, total) >= LEAST_SHARE).collect();
    let told = entries.iter().take(MOST_OTHERS);
    let left = others.total().0 - told.clone().map(|(_, nanos)| nanos.0).sum::<u64>();
    let mut named: Vec<String> = told.map(|&(id, nanos)| format!("{} ({})", name(id), time(nanos))).collect();
    if named.is_empty() {
        return None;
    }
    if share(Nanos(left), total) >= LEAST_SHARE {
        named.push(format!("some more ({})", time(Nanos(left))));
    }
    Some(format!("Of other requests, {} {what}.", listed(&named)))
}

/// The time between tokens.
fn gaps(account: &Account, name: &dyn Fn(RequestId) -> String) -> Vec<String> {
    let (late, tokens) = (account.late_gaps(), account.num_tokens());
    let mean =
        account.tpot().map_or_else(String::new, |seconds| format!(", one every {} on average", duration(seconds)));
    let spent = account.first_token.zip(account.last_token).map_or(Nanos(0), |(first, last)| last.since(first));
    let mut story = vec![format!("Then {} came in {}{mean}.", counted(tokens - 1, "token"), time(spent))];
    story.extend(parts("Between them: ", &account.bill.gaps, account.bill.uncertain[1]));
    story.extend(drafts(account));
    let target = account.targets.tpot;
    let longest = account.longest_gaps.iter().max_by_key(|gap| gap.shares.total());
    if let (Some(longest), false) = (longest, late.is_empty()) {
        let than = match target {
            Some(target) => format!("the target of {}", time(target)),
            None => "twice the median gap".to_owned(),
        };
        // The list has the longest gaps alone.
        let many = if late.len() >= 32 { "32 or more tokens" } else { &counted(late.len(), "token") };
        story.push(format!("{many} came later than {than}. {}", longest_gap(account, longest)));
        story.extend(delayed("delayed that one most", &longest.others, &longest.shares, name));
        if !one_culprit(&longest.others, &account.bill.gaps_others) {
            story.extend(delayed(
                "delayed all gaps together most",
                &account.bill.gaps_others,
                &account.bill.gaps,
                name,
            ));
        }
    }
    story
}

/// Gain of accepted drafts, and cost of rejected ones.
fn drafts(account: &Account) -> Option<String> {
    let Account { draft_rows, held_drafts, ref bill, .. } = *account;
    let rejected = time(bill.rejected);
    let cost = if held_drafts < draft_rows { format!("; the rejected ones took {rejected}") } else { String::new() };
    let drafted = counted(draft_rows, "draft token");
    (draft_rows > 0).then(|| {
        format!("Of {drafted} {held_drafts} {} accepted{cost}.", if held_drafts == 1 { "was" } else { "were" })
    })
}

/// Nothing is said twice.
fn one_culprit(longest: &Named, all: &Named) -> bool {
    all.entries().count() == 0
        || longest.entries().map(|(id, _)| id).eq(all.entries().map(|(id, _)| id)) && all.entries().count() == 1
}

fn longest_gap(account: &Account, gap: &Gap) -> String {
    let (owner, nanos) = largest(&gap.shares).first().copied().unwrap_or((Owner::Overhead, Nanos(0)));
    format!(
        "The longest gap, {}, was before token {}, {} after the request came: {} of it {}.",
        time(gap.shares.total()),
        gap.token + 1,
        span(account, gap.at),
        time(nanos),
        words(owner.name()),
    )
}

/// What to do about the largest part of either time, if it is large and anything can be done.
fn helps(account: &Account) -> Option<String> {
    let late: Shares = account.late_gaps().iter().fold(Shares::default(), |mut sum, gap| {
        sum.merge(&gap.shares);
        sum
    });
    let mut told: Vec<&str> = Vec::new();
    match account.bill.miss.filter(|miss| miss.lost > 0).map(|miss| miss.why) {
        Some(MissReason::Evicted) => {
            told.push("more KV cache (--kv-cache-memory-bytes), or room for what leaves it (--kv-swap-memory)");
        }
        Some(MissReason::OtherToken) => {
            told.push("what changes in its prompt at the end of that, so the rest is found")
        }
        _ => {}
    }
    for shares in [&account.bill.ttft, &late] {
        let total = shares.total();
        let worth = largest(shares).into_iter().filter(|&(_, nanos)| share(nanos, total) >= LEAST_ADVISED);
        for advice in worth.filter_map(|(owner, _)| advice(owner.name())) {
            if !told.contains(&advice) {
                told.push(advice);
            }
        }
    }
    (!told.is_empty()).then(|| format!("What helps: {}.", told.join("; ")))
}

fn largest(shares: &Shares) -> Vec<(Owner, Nanos)> {
    let parts = Owner::ALL.into_iter().map(|owner| (owner, shares.of(owner)));
    let mut parts: Vec<(Owner, Nanos)> = parts.filter(|(_, nanos)| *nanos > Nanos(0)).collect();
    parts.sort_by_key(|&(owner, nanos)| (std::cmp::Reverse(nanos), owner));
    parts
}

fn share(part: Nanos, whole: Nanos) -> f64 {
    part.0 as f64 / whole.0.max(1) as f64
}

fn time(nanos: Nanos) -> String {
    duration(nanos.as_secs_f64())
}

fn span(account: &Account, to: Nanos) -> String {
    time(to.since(account.arrived))
}

fn since_last(account: &Account, now: Nanos) -> String {
    time(now.since(account.last_token.unwrap_or(now)))
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn times(count: usize) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [many @ .., last] => format!("{} and {last}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_has_words() {
        for owner in Owner::ALL {
            assert_ne!(words(owner.name()), owner.name(), "say what {} did", owner.name());
        }
    }

    #[test]
    fn what_it_cost_others_is_told_if_it_is_worth_telling() {
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        let of = Cost { queue_seats: ms(300), queue_budget: ms(100), prefill_in_gaps: ms(600), ..Cost::default() };
        let (all, queue, prompt) = (time(ms(1000)), time(ms(400)), time(ms(600)));
        assert_eq!(
            cost(&of),
            Some(format!("Others waited {all} for it: {queue} in the queue and {prompt} for its prompt."))
        );
        assert_eq!(cost(&Cost::default()), None);
    }

    #[test]
    fn lists_are_english() {
        let list = |names: &[&str]| listed(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
        assert_eq!(["a"].map(|_| list(&["a"])), ["a"]);
        assert_eq!((list(&["a", "b"]), list(&["a", "b", "c"])), ("a and b".into(), "a, b and c".into()));
    }
}
