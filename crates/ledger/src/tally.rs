//! The requests that an answer waits for before its first token. More are listed than [`Named`] keeps, because a small
//! part may become large.

use protocol::RequestId;

use crate::account::Named;
use crate::wait_shares::TimeByRequest;

/// Requests in a tally; beyond, the smallest moves to the rest.
const MOST_TALLIED: usize = 256;

/// Nanoseconds by request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// By increasing request id.
    parts: TimeByRequest,
    rest: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, request: RequestId, nanos: u64) {
        if nanos == 0 {
            return;
        }
        match self.parts.binary_search_by_key(&request, |&(known, _)| known) {
            Ok(at) => self.parts[at].1 += nanos,
            Err(at) => {
                self.parts.insert(at, (request, nanos));
                if self.parts.len() > MOST_TALLIED {
                    let smallest = (0..self.parts.len()).min_by_key(|&at| self.parts[at].1).expect("there are some");
                    self.rest += self.parts.remove(smallest).1;
                }
            }
        }
    }

    /// Adds to the rest.
    pub(crate) fn add_rest(&mut self, nanos: u64) {
        self.rest += nanos;
    }

    /// The largest parts by name.
    pub(crate) fn named(&self) -> Named {
        let mut named = Named::default();
        self.parts.iter().for_each(|&(request, nanos)| named.add(request, nanos));
        named.add_rest(self.rest);
        named
    }
}
