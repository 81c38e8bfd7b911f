//! Draft tokens in the simulator: how many are proposed, and which are accepted.
//!
//! ```text
//! imagined     a fixed number of drafts at every token; acceptance is drawn from the answer's name and the position
//! remembered   the recorded proposals; a recorded result of a draft is repeated, others follow the answer's rate
//! ```
//! Acceptance is a property of the answer's text. So it is the same in every schedule, batch and repetition.

use scheduler::{DraftProposal, DraftSource, SeqId};

use figures::random::mix;

/// Drafts proposed at each token of an imagined answer: the maximum of the engine's lookup.
const OFFERED: u16 = 16;
/// Separates these random draws from those of tokens.
const DRAFTS: u64 = 0x6b79_9b5c_1c3e_d4a5;

/// Acceptance probabilities of imagined drafts.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance(Vec<f64>);

impl Acceptance {
    /// By position in a run of drafts: the probability of acceptance if all before are accepted. The last applies to all
    /// further positions. Panics if there is none, or one is not from 0 to 1.
    pub fn new(chances: Vec<f64>) -> Acceptance {
        assert!(
            !chances.is_empty() && chances.iter().all(|chance| (0.0..=1.0).contains(chance)),
            "chances: {chances:?}"
        );
        Acceptance(chances)
    }

    fn at(&self, place: usize) -> f64 {
        self.0[place.min(self.0.len() - 1)]
    }
}

/// A recorded step of an answer with proposed drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftedStep {
    /// Index of the next token of the answer, which is the first drafted one.
    pub position: usize,
    /// The drafter.
    pub source: DraftSource,
    /// Its confidence.
    pub strength: u8,
    /// Proposed drafts.
    pub offered: u16,
    /// Verified drafts.
    pub drafted: usize,
    /// Accepted drafts, from the first.
    pub held: usize,
}

impl DraftedStep {
    /// Drafts with a known result: those after the first rejected one have none.
    pub fn judged(&self) -> usize {
        self.drafted.min(self.held + 1)
    }
}

/// The recorded drafts of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct RememberedDrafts {
    /// By rising position.
    steps: Vec<DraftedStep>,
    /// Acceptance probability of drafts without a recorded result.
    rate: f64,
}

impl RememberedDrafts {
    /// From the answer's steps in order; if a position occurs twice, the last counts. `rate`: the acceptance probability of
    /// drafts that were not verified.
    pub fn new(steps: impl IntoIterator<Item = DraftedStep>, rate: f64) -> RememberedDrafts {
        let mut kept: Vec<DraftedStep> = Vec::new();
        for step in steps {
            while kept.last().is_some_and(|last| last.position >= step.position) {
                kept.pop();
            }
            kept.push(step);
        }
        RememberedDrafts { steps: kept, rate }
    }

    /// The last step at or before a position.
    fn step(&self, position: usize) -> Option<&DraftedStep> {
        self.steps[..self.steps.partition_point(|step| step.position <= position)].last()
    }

    /// The proposal for the token at `position`. If the position was skipped because drafts before it were accepted, the
    /// proposal of the earlier step is assumed to continue.
    fn offer(&self, position: usize) -> Option<&DraftedStep> {
        self.step(position).filter(|step| position <= step.position + step.held)
    }

    /// Whether a verified draft of this token was accepted.
    fn is_known(&self, position: usize) -> Option<bool> {
        let step = self.step(position)?;
        let place = position - step.position;
        (place < step.judged()).then_some(place < step.held)
    }
}

/// Source of an answer's drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DraftModel<'a> {
    Imagined(&'a Acceptance),
    Remembered(&'a RememberedDrafts),
}

/// Results of a step's drafts: how many were accepted, and how many results were drawn instead of recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) held: usize,
    pub(crate) assumed: usize,
}

impl DraftModel<'_> {
    /// The proposal for the token at `position`.
    pub(crate) fn offer(&self, seq: SeqId, position: usize) -> Option<DraftProposal> {
        match self {
            DraftModel::Imagined(_) => Some(DraftProposal { seq, source: DraftSource(0), len: OFFERED, strength: 0 }),
            DraftModel::Remembered(drafts) => drafts.offer(position).map(|step| DraftProposal {
                seq,
                source: step.source,
                len: step.offered,
                strength: step.strength,
            }),
        }
    }

    /// Verifies `drafts` drafts of the tokens from `position` on of the answer `answer`.
    pub(crate) fn judge(&self, answer: u64, position: usize, drafts: usize) -> Judged {
        let mut judged = Judged::default();
        for place in 0..drafts {
            let at = position + place;
            let holds = match self {
                DraftModel::Imagined(acceptance) => draw(answer, at) < acceptance.at(place),
                DraftModel::Remembered(drafts) => drafts.is_known(at).unwrap_or_else(|| {
                    judged.assumed += 1;
                    draw(answer, at) < drafts.rate
                }),
            };
            if !holds {
                break;
            }
            judged.held += 1;
        }
        judged
    }
}

/// A random number in `[0, 1)` for a token of an answer.
fn draw(answer: u64, position: usize) -> f64 {
    let bits = mix(mix(answer ^ DRAFTS).wrapping_add((position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(position: usize, offered: u16, drafted: usize, held: usize) -> DraftedStep {
        DraftedStep { position, source: DraftSource(0), strength: 3, offered, drafted, held }
    }

    #[test]
    fn imagined_drafts_are_accepted_as_often_as_was_said() {
        let acceptance = Acceptance::new(vec![0.9, 0.5]);
        let drafting = DraftModel::Imagined(&acceptance);
        let runs = 40_000;
        // A run of three: the first is accepted with .9, the first two with .45, all with .225.
        let mut held = [0; 4];
        (0..runs).for_each(|run| held[drafting.judge(run, 7, 3).held] += 1);
        let share = |least: usize| held[least..].iter().sum::<u64>() as f64 / runs as f64;
        for (least, expected) in [(1, 0.9), (2, 0.45), (3, 0.225)] {
            assert!((share(least) - expected).abs() < 0.01, "{least}: {} of {expected}", share(least));
        }
        // The same draft in another run has the same result, at a position of the same probability.
        for answer in 0..1000 {
            let (long, short) = (drafting.judge(answer, 3, 8).held, drafting.judge(answer, 5, 8).held);
            assert!(long < 3 || short == 0 || short + 2 >= long, "{answer}: {long} and {short}");
        }
        for (chance, held) in [(0.0, 0), (1.0, 8)] {
            let acceptance = Acceptance::new(vec![chance]);
            assert!((0..1000).all(|answer| DraftModel::Imagined(&acceptance).judge(answer, 0, 8).held == held));
        }
    }

    #[test]
    fn what_was_checked_holds_or_fails_again() {
        // Token 4: 3 of 3 accepted. 8: 2 of 4. 11: proposed but not verified. 14: twice, the second counts.
        let steps = [step(4, 5, 3, 3), step(8, 6, 4, 2), step(11, 2, 0, 0), step(14, 9, 2, 2), step(14, 7, 1, 0)];
        // Proposals at each token, and the recorded result of a draft of it.
        let (yes, no) = (Some(true), Some(false));
        let table: [(usize, Option<u16>, Option<bool>); 13] = [
            (3, None, None),
            (4, Some(5), yes),
            (5, Some(5), yes),
            (6, Some(5), yes),
            // It was sampled after the three drafts, so there was no draft of it; and it was never next.
            (7, Some(5), None),
            (8, Some(6), yes),
            (9, Some(6), yes),
            (10, Some(6), no),
            (11, Some(2), None),
            (12, None, None),
            (13, None, None),
            (14, Some(7), no),
            (15, None, None),
        ];
        for rate in [0.0, 1.0] {
            let drafts = RememberedDrafts::new(steps, rate);
            for (position, offered, known) in table {
                assert_eq!(drafts.offer(position).map(|step| step.offered), offered, "{position}");
                assert_eq!(drafts.is_known(position), known, "{position}");
                let judged = DraftModel::Remembered(&drafts).judge(1, position, 1);
                let holds = known.unwrap_or(rate == 1.0);
                assert_eq!(judged, Judged { held: holds.into(), assumed: known.is_none().into() }, "{position}");
            }
        }
        // A run stops at the first rejected draft, and so do drawn results.
        let drafts = RememberedDrafts::new(steps, 1.0);
        let judged = |position, count| DraftModel::Remembered(&drafts).judge(1, position, count);
        assert_eq!(judged(4, 16), Judged { held: 6, assumed: 1 });
        assert_eq!(judged(8, 16), Judged { held: 2, assumed: 0 });
        assert_eq!(judged(11, 2), Judged { held: 2, assumed: 2 });
    }
}
