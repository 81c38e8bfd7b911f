//! The lookup by itself, for counting what it takes: `guards/` drives it as the core does, without a model, a
//! thread or a client.

use protocol::TokenId;
use scheduler::{DraftProposal, Scheduler, Step};

use crate::drafter::Drafter;
use crate::lookup::Lookup;
use crate::options::{Drafters, LookupOptions};

/// Drafts by lookup for a scheduler's sequences.
#[doc(hidden)]
pub struct LookupBench {
    lookup: Lookup,
    offers: Vec<DraftProposal>,
    drafts: Vec<TokenId>,
}

impl Default for LookupBench {
    /// With an engine's default options.
    fn default() -> LookupBench {
        let lookup = Lookup::new(Drafters::default().max_drafts, &LookupOptions::default());
        LookupBench { lookup, offers: Vec::new(), drafts: Vec::new() }
    }
}

impl LookupBench {
    /// What could be had for all that decode, before a plan.
    pub fn offers(&mut self, scheduler: &Scheduler) -> &[DraftProposal] {
        self.lookup.begin(&|seq| scheduler.sequence(seq).is_some());
        self.offers.clear();
        self.offers.extend(scheduler.decoding().filter_map(|sequence| self.lookup.propose(sequence, None)));
        &self.offers
    }

    /// The drafts that a plan took, one sequence after the other.
    pub fn propose(&mut self, step: &Step, scheduler: &Scheduler) -> &[TokenId] {
        self.drafts.clear();
        for rows in step.decode.iter().filter(|rows| rows.drafts > 0) {
            let sequence = scheduler.sequence(rows.seq).expect("a planned sequence lives until its step completes");
            self.lookup.draft(sequence, rows.drafts, &mut self.drafts);
        }
        &self.drafts
    }
}
