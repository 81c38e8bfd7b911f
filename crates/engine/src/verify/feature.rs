//! What verification notes while answers are computed, and does with them when they end.

use std::collections::BTreeMap;

use model::Forward;
use protocol::RequestId;
use receipt::Digest;
use scheduler::CacheEvent;

use super::notes::{Notes, asked};
use super::spot::SpotChecks;
use crate::feature::{CoreEvent, EndedAnswer, Feature};
use crate::output::Event;

/// Receipts and spot checks.
pub(crate) struct Verify {
    spot: Option<SpotChecks>,
    requests: BTreeMap<RequestId, NotedRequest>,
}

/// A request whose rows are noted.
struct NotedRequest {
    seed: u64,
    is_checked: bool,
    answers: Vec<Notes>,
}

impl Verify {
    pub(crate) fn new(spot: Option<SpotChecks>) -> Verify {
        Verify { spot, requests: BTreeMap::new() }
    }
}

impl Feature for Verify {
    fn on(&mut self, event: &CoreEvent<'_>) {
        match *event {
            CoreEvent::Admitted { id, request, seed } => {
                // A verifier has the model alone.
                let is_whole = request.adapter.is_none() && request.generated.is_empty();
                let is_checked = is_whole && self.spot.as_ref().is_some_and(|spot| spot.picks(id));
                if request.receipt || is_checked {
                    let answers = (0..request.num_answers).map(|_| Notes::default()).collect();
                    self.requests.insert(id, NotedRequest { seed, is_checked, answers });
                }
            }
            CoreEvent::Sampling { id, ref answers, ahead, logits } => {
                if let Some(noted) = self.requests.get_mut(&id) {
                    // Answers that begin with the same row share its digest.
                    let row = Digest::of_row(logits);
                    noted.answers[answers.clone()].iter_mut().for_each(|notes| notes.row(ahead, row));
                }
            }
            CoreEvent::Delivered { id, answer, token } => {
                if let Some(noted) = self.requests.get_mut(&id) {
                    noted.answers[answer].token(token);
                }
            }
            CoreEvent::Ended(id) => _ = self.requests.remove(&id),
            CoreEvent::AllEnded => self.requests.clear(),
            // What a check under way has computed may be gone with its device.
            CoreEvent::CacheChanged([CacheEvent::Cleared]) => self.spot.iter_mut().for_each(SpotChecks::drop_current),
            CoreEvent::CacheChanged(_) => {}
        }
    }

    fn wants_logits(&self, id: RequestId) -> bool {
        self.requests.contains_key(&id)
    }

    fn attach(&mut self, ended: &EndedAnswer<'_>) -> Option<Event> {
        let &EndedAnswer { id, answer, request, reason, stop_string } = ended;
        let noted = self.requests.get_mut(&id)?;
        let notes = std::mem::take(&mut noted.answers[answer]);
        let unsealed = notes.end(asked(request, noted.seed, answer), reason, stop_string);
        let receipt = request.receipt.then(|| Event::Noted { answer, unsealed: Box::new(unsealed.clone()) });
        if let Some(spot) = self.spot.as_mut().filter(|_| noted.is_checked) {
            spot.take(id, unsealed, request.rule.as_ref().map(|(_, grammar)| grammar));
        }
        receipt
    }

    fn idle(&mut self, forward: &mut dyn Forward) -> bool {
        self.spot.as_mut().is_some_and(|spot| spot.step(forward))
    }
}
