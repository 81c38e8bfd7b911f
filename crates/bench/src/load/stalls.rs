//! Which gaps between tokens were long, and which requests' prompts took them.
//!
//! ```text
//! client    first token . . . . . . [-- stall --] . . . . .        longer than twice the median gap of its answer, and 20 ms
//! server    first token . . . . . . [own 4 ms | prompt of B 310 ms] . . . .      its longest gaps, with their owners
//! ```
//! Labels come from the client's clock alone, for any server. Both clocks are laid over each other at the first token:
//! what the network adds to both sides of a gap cancels out. A stall that has no counterpart at the server happened on
//! the way.

use std::collections::{BTreeMap, BTreeSet};

use figures::Distribution;
use ledger::{LATE_FLOOR, LATE_MEDIANS};
use protocol::Nanos;
use serde_json::Value;

use crate::load::client::RequestOutcome;
use crate::load::requests::{RequestTimeline, TimelineGap};

/// The gaps of a run in two heaps, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stalls {
    /// Gaps that are none.
    pub steady: Distribution,
    /// Gaps that are.
    pub stalled: Distribution,
    /// What stalls took beyond the medians of their answers, in all.
    pub lost_ms: f64,
    /// Answers with a stall.
    pub answers: usize,
    /// The server's own account, if it keeps one.
    pub server: Option<Attribution>,
}

/// Whose time the stalls were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attribution {
    /// Answers whose timeline was read.
    pub answers: usize,
    /// Stalls of these answers.
    pub stalls: usize,
    /// Those that the server's account has too; what follows is about them.
    pub explained: usize,
    /// Milliseconds by owner, the largest first.
    pub owners: Vec<(String, f64)>,
    /// Whose prompts the part `other_prefill` was, the largest first.
    pub prompts: Vec<Prefill>,
}

/// A request whose prompt made others wait for their tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefill {
    /// As the server names it: a response id, or a number in place of another key's.
    pub name: String,
    /// Which outcome of the run it is; `None`: not one of ours.
    pub request: Option<usize>,
    /// Milliseconds of late tokens that it owns.
    pub ms: f64,
    /// Answers that it held up.
    pub answers: usize,
}

/// Indices of an answer's gaps that are stalls.
pub(crate) fn late(itls: &[f64]) -> Vec<usize> {
    let limit = ledger::late_above(None, Nanos((median(itls) * 1e9) as u64)).as_secs_f64();
    (0..itls.len()).filter(|&index| itls[index] > limit).collect()
}

/// A smaller gap is none: a step with accepted drafts yields several tokens at once, and no pass is as short.
const TOGETHER: f64 = 100e-6;

/// The median of the gaps above [`TOGETHER`]: otherwise every step of a stream with good drafts would be late.
fn median(itls: &[f64]) -> f64 {
    let mut waited: Vec<f64> = itls.iter().copied().filter(|&gap| gap >= TOGETHER).collect();
    figures::median(&mut waited).unwrap_or_default()
}

/// What a stall is, in words.
pub(crate) fn definition() -> String {
    format!("gaps above {LATE_MEDIANS} x the answer's median and {} ms", LATE_FLOOR.0 / 1_000_000)
}

/// Milliseconds that an answer's stalls took beyond its median gap.
fn lost_ms(itls: &[f64]) -> f64 {
    let median = median(itls);
    late(itls).iter().map(|&index| (itls[index] - median) * 1e3).sum()
}

/// Labels every gap of the completed answers.
pub fn stalls(outcomes: &[RequestOutcome]) -> Stalls {
    let (mut steady, mut stalled) = (Vec::new(), Vec::new());
    let mut found = Stalls::default();
    for outcome in outcomes.iter().filter(|outcome| outcome.error.is_none()) {
        let late = late(&outcome.itls);
        found.answers += usize::from(!late.is_empty());
        found.lost_ms += lost_ms(&outcome.itls);
        let mut late = late.into_iter().peekable();
        for (index, gap) in outcome.itls.iter().enumerate() {
            let heap = if late.next_if_eq(&index).is_some() { &mut stalled } else { &mut steady };
            heap.push(gap * 1e3);
        }
    }
    Stalls { steady: Distribution::of(steady), stalled: Distribution::of(stalled), ..found }
}

/// The answers, at most `most`, whose timelines tell most: the ones that lost most time in stalls, the worst first.
pub(crate) fn worth_asking(outcomes: &[RequestOutcome], most: usize) -> Vec<usize> {
    let completed = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.error.is_none());
    let lost = completed.map(|(index, outcome)| (lost_ms(&outcome.itls), index));
    let mut lost: Vec<(f64, usize)> = lost.filter(|(lost, _)| *lost > 0.0).collect();
    lost.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    lost.into_iter().take(most).map(|(_, index)| index).collect()
}

/// A gap as the server's timeline has it. Times are in seconds.
struct ServersGap<'a> {
    /// Its end, from the first token.
    end: f64,
    gap: f64,
    told: &'a TimelineGap,
}

impl Stalls {
    /// Part of all gaps that are stalls, 0 to 1.
    pub fn share(&self) -> f64 {
        let gaps = self.steady.len() + self.stalled.len();
        if gaps == 0 { 0.0 } else { self.stalled.len() as f64 / gaps as f64 }
    }
}

impl Attribution {
    /// Lays the timelines of some answers (indices of `outcomes`) over their stalls.
    pub fn of(outcomes: &[RequestOutcome], timelines: &[(usize, RequestTimeline)]) -> Attribution {
        let mut found = Attribution { answers: timelines.len(), ..Attribution::default() };
        let mut owners: BTreeMap<&str, f64> = BTreeMap::new();
        let mut prompts: BTreeMap<String, Prefill> = BTreeMap::new();
        for (index, timeline) in timelines {
            let mut theirs = servers_gaps(timeline);
            let mut held_up_by = Vec::new();
            let (mut end, late) = (0.0, late(&outcomes[*index].itls));
            found.stalls += late.len();
            for (place, gap) in outcomes[*index].itls.iter().enumerate() {
                end += gap;
                let is_late = late.binary_search(&place).is_ok();
                let Some(same) = is_late.then(|| same(&theirs, end, *gap)).flatten() else { continue };
                let same = theirs.swap_remove(same);
                found.explained += 1;
                for (owner, ms) in &same.told.owners {
                    *owners.entry(owner.trim_end_matches("_ms")).or_default() += ms;
                }
                held_up_by.extend(same.told.delayed_by.iter().map(|delay| (name(&delay.request), delay.ms)));
            }
            let mut counted = BTreeSet::new();
            for (name, ms) in held_up_by {
                let request = outcomes.iter().position(|outcome| outcome.id == name);
                let fresh = Prefill { name: name.clone(), request, ms: 0.0, answers: 0 };
                let prompt = prompts.entry(name.clone()).or_insert(fresh);
                prompt.ms += ms;
                prompt.answers += usize::from(counted.insert(name));
            }
        }
        found.owners = owners.into_iter().map(|(name, ms)| (name.to_owned(), ms)).collect();
        found.owners.sort_by(|one, other| other.1.total_cmp(&one.1));
        found.prompts = prompts.into_values().collect();
        found.prompts.sort_by(|one, other| other.ms.total_cmp(&one.ms));
        found
    }

    /// Milliseconds of all owners.
    pub fn total_ms(&self) -> f64 {
        self.owners.iter().map(|(_, ms)| ms).sum()
    }
}

/// The longest gaps of a timeline's answer.
fn servers_gaps(timeline: &RequestTimeline) -> Vec<ServersGap<'_>> {
    let told = timeline.prompts.first().and_then(|prompt| Some((prompt, prompt.ttft_ms?)));
    let Some((prompt, first)) = told else { return Vec::new() };
    let gaps = prompt.longest_gaps.iter();
    gaps.map(|told| ServersGap { end: (told.at_ms - first) / 1e3, gap: told.gap_ms / 1e3, told }).collect()
}

/// The gap that shares most time with the one of `gap` seconds before `end`, unless their ends are further apart than half
/// of the longer one. Behind a long gap the client often sees a short one end nearer.
fn same(theirs: &[ServersGap<'_>], end: f64, gap: f64) -> Option<usize> {
    let shared = |index: &usize| {
        let other = &theirs[*index];
        other.end.min(end) - (other.end - other.gap).max(end - gap)
    };
    let best = (0..theirs.len()).max_by(|one, other| shared(one).total_cmp(&shared(other)))?;
    ((theirs[best].end - end).abs() <= theirs[best].gap.max(gap) / 2.0).then_some(best)
}

/// Another request as the server names it: its response id, a number, or nothing for many small ones together.
fn name(request: &Value) -> String {
    match request {
        Value::String(id) => id.clone(),
        Value::Null => "others".to_owned(),
        number => format!("another key's {number}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answered(id: &str, itls: &[f64]) -> RequestOutcome {
        RequestOutcome {
            id: id.into(),
            ttft: 0.1,
            itls: itls.to_vec(),
            output_tokens: itls.len() + 1,
            ..RequestOutcome::default()
        }
    }

    #[test]
    fn a_gap_without_a_reader_is_no_stall() {
        // 0.45 ms a token: six times that is noise, and so is 19 ms; 21 ms are not.
        let itls = [0.00045, 0.0028, 0.00045, 0.019, 0.00045, 0.021, 0.00045];
        assert_eq!(late(&itls), [5]);
        assert_eq!(stalls(&[answered("a", &itls)]).stalled.len(), 1);
        assert_eq!(definition(), "gaps above 2 x the answer's median and 20 ms");
    }

    #[test]
    fn a_gap_is_a_stall_above_twice_the_median_of_its_own_answer() {
        // Slow is not late: the second answer is steady.
        let failed = RequestOutcome { error: Some("no".into()), ..answered("c", &[0.1, 9.0]) };
        let found = stalls(&[answered("a", &[0.010, 0.010, 0.012, 0.310]), answered("b", &[0.2, 0.2, 0.3]), failed]);
        assert_eq!((found.steady.len(), found.stalled.len(), found.answers), (6, 1, 1));
        assert!((found.stalled.percentile(50.0) - 310.0).abs() < 1e-9);
        assert!((found.lost_ms - 299.0).abs() < 1e-9, "310 ms less a median of 11: {}", found.lost_ms);
        // Of three tokens that come together two have no wait: that makes the step no stall.
        assert_eq!(late(&[0.04, 1e-5, 2e-5, 0.04, 1e-5, 2e-5, 0.041, 1e-5, 0.3]), [8]);
        assert_eq!(late(&[]), Vec::<usize>::new());
        assert_eq!(stalls(&[]), Stalls::default());
    }

    #[test]
    fn answers_that_lost_most_are_asked_for_first_and_steady_ones_not_at_all() {
        let outcomes =
            [answered("a", &[0.01, 0.01, 0.1]), answered("b", &[0.01, 0.01, 0.01]), answered("c", &[0.01, 0.01, 0.5])];
        assert_eq!(worth_asking(&outcomes, 9), [2, 0]);
        assert_eq!(worth_asking(&outcomes, 1), [2]);
    }

    fn timeline(ttft_ms: f64, gaps: &[(f64, f64, Value)]) -> RequestTimeline {
        let gap = |(at, ms, by): &(f64, f64, Value)| {
            json!({
                "at_ms": at, "gap_ms": ms,
                "owners": {"own_decode_ms": 10.0, "other_prefill_ms": ms - 10.0},
                "delayed_by": [{"request": by, "ms": ms - 10.0}],
            })
        };
        let gaps: Vec<Value> = gaps.iter().map(gap).collect();
        let prompts = json!([{"ttft_ms": ttft_ms, "longest_gaps": gaps}]);
        RequestTimeline::read(&json!({"object": "request.timeline", "prompts": prompts})).expect("it is one")
    }

    #[test]
    fn a_stall_is_the_servers_gap_that_ends_when_it_does() {
        let outcomes = [answered("a", &[0.01, 0.01, 0.324, 0.01, 0.2, 0.01, 0.01]), answered("long", &[])];
        // At the server the first token came after 40 ms, and a short gap ends nearer to the first stall, which was seen 4 ms
        // late. A second stall there is none: it happened on the way.
        let timelines = [(
            0,
            timeline(40.0, &[(380.0, 318.0, json!("long")), (385.0, 12.0, json!(null)), (60.0, 10.0, json!(null))]),
        )];
        let found = Attribution::of(&outcomes, &timelines);
        assert_eq!((found.answers, found.stalls, found.explained), (1, 2, 1));
        assert_eq!(found.owners, [("other_prefill".to_owned(), 308.0), ("own_decode".to_owned(), 10.0)]);
        let long = Prefill { name: "long".into(), request: Some(1), ms: 308.0, answers: 1 };
        assert_eq!((found.prompts.as_slice(), found.total_ms()), (&[long][..], 318.0));
    }

    #[test]
    fn other_keys_are_numbers_and_rubbish_is_nothing() {
        let outcomes = [answered("a", &[0.01, 0.01, 0.3])];
        let found = Attribution::of(&outcomes, &[(0, timeline(0.0, &[(320.0, 300.0, json!(77))]))]);
        assert_eq!((found.prompts[0].name.as_str(), found.prompts[0].request), ("another key's 77", None));
        for prompts in [json!([{"ttft_ms": "x"}]), json!([{"ttft_ms": 1.0, "longest_gaps": [7]}]), json!(3)] {
            assert_eq!(RequestTimeline::read(&json!({"object": "request.timeline", "prompts": prompts})), None);
        }
        assert_eq!(RequestTimeline::read(&json!(null)), None);
        let found = Attribution::of(&outcomes, &[(0, RequestTimeline::default())]);
        assert_eq!((found.stalls, found.explained, found.owners.len()), (1, 0, 0));
    }
}
