//! What is checked from outside, after every call. The names are those of the table in `main.rs`.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{Nanos, Priority, RequestId};
use scheduler::{Phase, Rows, Scheduler, SeqId, Sequence, Step, StepRecord, Work};

use crate::machine_load::{Clock, Knowledge};
use crate::model::LoweredRows;
use crate::world::{Chaos, held_blocks};

/// The scheduler's promises in numbers.
pub(crate) const MAX_PREEMPTIONS: u32 = 4;
const PATIENCE: usize = 16;
/// Rows that younger prompts may get before a late one that runs has some, in steps' worth.
const LATE_PATIENCE: usize = 6;
/// Steps in a row in which a decode row without a target may be left out for others' targets.
const MOST_LEFT_OUT: u32 = 8;
/// A step may last at most this multiple of the time per token of its tightest stream, as documented.
const LONGEST_GAP: f64 = 1.5;
/// The multiple where decode alone takes longer.
const LEAST_GROWTH: f64 = 1.1;

/// The oldest prompt, the steps in which others got prompt rows and it did not, and how many entered in those.
#[derive(Default)]
pub(crate) struct PassedOver {
    id: Option<SeqId>,
    steps: usize,
    entered: usize,
}

/// Of each tenant and class, the oldest of its running prompts with a deadline, where that has passed, and the rows that
/// younger ones got since it had some.
pub(crate) type Overtaken = BTreeMap<(u64, Priority), (SeqId, usize)>;

/// How many steps in a row each decode row was left out of.
pub(crate) type LeftOut = BTreeMap<SeqId, u32>;

/// The sequences as an outsider sees them.
pub(crate) struct Snapshot {
    seqs: BTreeMap<SeqId, Seen>,
}

struct Seen {
    id: SeqId,
    /// Class, arrival, answer.
    rank: (Priority, RequestId, usize),
    tenant: u64,
    runs: bool,
    loading: bool,
    in_flight: bool,
    phase: Phase,
    preemptions: u32,
    num_answers: usize,
    num_tokens: usize,
    num_generated: usize,
    num_computed: usize,
    ttft: Option<Nanos>,
    tpot: Option<Nanos>,
    /// When its first token is due.
    due: Option<u64>,
}

impl Seen {
    fn of(seq: &Sequence) -> Seen {
        let request = seq.request();
        Seen {
            id: seq.id(),
            rank: (request.priority, seq.request_id(), seq.answer()),
            tenant: request.tenant,
            runs: !seq.block_table().is_empty(),
            loading: seq.is_loading(),
            in_flight: seq.is_in_flight(),
            phase: seq.phase(),
            preemptions: seq.num_preemptions(),
            num_answers: request.num_answers,
            num_tokens: seq.num_tokens(),
            num_generated: seq.num_generated(),
            num_computed: seq.num_computed(),
            ttft: request.targets.ttft,
            tpot: request.targets.tpot,
            due: request.targets.ttft.map(|ttft| request.arrived.0.saturating_add(ttft.0)),
        }
    }

    /// Its blocks are being written.
    fn is_busy(&self) -> bool {
        self.loading || self.in_flight
    }

    /// It cannot lose its blocks.
    fn stays(&self) -> bool {
        self.is_busy() || self.preemptions >= MAX_PREEMPTIONS
    }

    fn seats(&self) -> usize {
        if self.num_generated == 0 { self.num_answers } else { 1 }
    }

    fn is_decoding(&self) -> bool {
        self.runs && !self.is_busy() && self.phase == Phase::Decode
    }

    /// It has prompt rows to go, or tokens to compute again.
    fn is_prompt(&self) -> bool {
        !self.runs || self.phase == Phase::Prefill && !self.is_busy()
    }
}

impl Snapshot {
    pub(crate) fn of(scheduler: &Scheduler) -> Snapshot {
        Snapshot { seqs: here(scheduler).map(|seq| (seq.id(), Seen::of(seq))).collect() }
    }

    fn waiting(&self) -> impl Iterator<Item = &Seen> {
        self.seqs.values().filter(|seq| !seq.runs)
    }
}

impl Chaos {
    /// Everything that a plan promises, against what was there before.
    pub(crate) fn check_plan(&mut self, before: &Snapshot, step: &Step) {
        let limits = self.scheduler.limits();
        assert!(step.num_rows() <= limits.max_num_batched_tokens, "I11: rows");
        assert!(step.prefill.len() <= limits.max_prefill_seqs, "I11: prompts in prefill");
        assert!(step.prefill.iter().all(|chunk| (1..=limits.max_prefill_chunk).contains(&chunk.len)), "I11: a chunk");
        self.rows += step.num_rows() - step.decode.iter().map(|rows| rows.drafts).sum::<usize>();
        assert!(self.rows <= self.row_allowance, "I13: work is repeated without end");

        let sources: BTreeSet<_> = step.copies.iter().map(|copy| copy.src).collect();
        let destinations: BTreeSet<_> = step.copies.iter().map(|copy| copy.dst).collect();
        assert_eq!(destinations.len(), step.copies.len(), "a block is copied to twice");
        assert!(sources.is_disjoint(&destinations), "copies depend on their order");

        let planned: BTreeSet<SeqId> = step.rows().map(|rows| rows.seq).collect();
        assert_eq!(planned.len(), step.decode.len() + step.prefill.len(), "a sequence has one entry in a step");
        let in_flight = |id: &SeqId| before.seqs.get(id).is_some_and(|seq| seq.in_flight);
        assert!(!planned.iter().any(in_flight), "a sequence is in one step at a time");
        assert!(!step.preempted.iter().any(in_flight), "I9: blocks of a step in flight are given up");
        self.check_decode(before, step);
        self.check_preemption(before, step);
        self.check_entry(before, step);
        self.check_hits();
        self.check_turns(before, step);
        self.check_patience(before, step);
        self.check_late(before, step);
        self.check_nothing_idles(before, step);
    }

    /// I17, I26: every sequence that was decoding has its row, whatever was cancelled or failed around it, but for one
    /// that stands behind protected ones or waits for the blocks of one that left, and for those without a target, a
    /// few steps in a row, beside one that has one.
    fn check_decode(&mut self, before: &Snapshot, step: &Step) {
        let decoding = before.seqs.values().filter(|seq| seq.is_decoding() && !step.preempted.contains(&seq.id));
        let (row, no_row): (Vec<&Seen>, Vec<&Seen>) = decoding.partition(|seq| decodes(step, seq.id));
        for seq in row {
            self.left_out.remove(&seq.id);
        }
        let mut stalled = 0;
        for seq in no_row {
            let (left, here): (Vec<&Seen>, Vec<&Seen>) =
                before.seqs.values().filter(|other| other.runs).partition(|other| self.has_left(other));
            let behind = |other: &&&Seen| other.rank > seq.rank && !step.preempted.contains(&other.id);
            let mut behind = here.iter().filter(behind).peekable();
            let is_last = behind.peek().is_none();
            let waits_for_a_reader = self.reads_hold_blocks();
            let waits_for_somebody = !is_last || !left.is_empty() || waits_for_a_reader;
            let may_stall = waits_for_somebody && behind.all(|other| other.stays());
            let is_stream = |seq: &Seen| seq.runs && !seq.loading && seq.phase == Phase::Decode;
            let with_target = |other: &&Seen| is_stream(other) && other.tpot.is_some();
            let beside_a_target = before.seqs.values().any(|other| with_target(&other));
            let steps = self.left_out.get(&seq.id).copied().unwrap_or(0);
            if self.knowledge != Knowledge::None && seq.tpot.is_none() && beside_a_target && steps < MOST_LEFT_OUT {
                // One that is short of a block sits out for that, and not for a target.
                self.left_out.insert(seq.id, steps + u32::from(!may_stall));
                self.seen.saw("left out for a target");
                continue;
            }
            assert!(may_stall, "I17: {:?} waits for no block", seq.id);
            self.seen.saw(match is_last {
                true if waits_for_a_reader => "stalled for a reader",
                true => "stalled for one that left",
                false => "stalled behind protected ones",
            });
            stalled += 1;
        }
        assert!(stalled <= 1, "I17: at most one sits out");
        for row in &step.decode {
            let seq = self.sequence(row.seq);
            assert_eq!(seq.phase(), Phase::Decode);
            let drafts = row.drafts;
            let last = Rows { seq: row.seq, start: seq.num_tokens() - 1, len: 1 + drafts, samples: 1, drafts };
            assert_eq!(*row, last, "a decode row is the last token, and its drafts");
            let offered = self.offered.get(&row.seq).copied().unwrap_or(0);
            assert!(drafts <= offered, "{drafts} drafts of {:?}, which was offered {offered}", row.seq);
            if drafts > 0 {
                assert!(step.preempted.is_empty() || before.seqs[&row.seq].runs, "drafts take no part in preemption");
                let limits = self.scheduler.limits();
                let longest = seq.num_prompt_tokens() + seq.request().stop.max_tokens;
                // Of an answer the last token is never computed.
                let most = longest.min(limits.max_model_len) - 1;
                assert!(row.start + row.len <= most, "drafts beyond the end of {:?}", row.seq);
                let (first, last) = (row.start / limits.block_size, (row.start + row.len - 1) / limits.block_size);
                if first != last {
                    self.seen.saw("drafts across a block's end");
                }
                if !step.prefill.is_empty() {
                    self.seen.saw("drafts beside a prompt");
                }
            }
            if !before.seqs[&row.seq].runs {
                self.seen.saw("resumed with a decode row");
            }
        }
        assert!(step.prefill.iter().all(|chunk| self.sequence(chunk.seq).phase() == Phase::Prefill));
    }

    /// Its client is gone or has enough tokens, and its blocks are held only until its loads have ended.
    fn has_left(&self, seq: &Seen) -> bool {
        let (_, request, answer) = seq.rank;
        let client = &self.clients[&request];
        client.cancelled || client.answers[answer].stopped
    }

    /// I14: no sequence is preempted for one ranked after it, nor too often.
    fn check_preemption(&mut self, before: &Snapshot, step: &Step) {
        for id in &step.preempted {
            let victim = &before.seqs[id];
            self.seen.saw("preempted");
            if victim.phase == Phase::Prefill {
                self.seen.saw("preempted in prefill");
            }
            if victim.phase == Phase::Prefill && victim.num_answers > 1 && victim.num_generated == 0 {
                self.seen.saw("preempted before its answers were forked");
            }
            assert!(self.sequence(*id).num_preemptions() <= MAX_PREEMPTIONS, "I14: preempted too often");
            let survivors = before.seqs.values().filter(|seq| seq.runs && !step.preempted.contains(&seq.id));
            let is_ahead = |seq: &Seen| seq.rank < victim.rank && !self.has_left(seq);
            assert!(survivors.clone().any(is_ahead), "I14: the first in line was preempted");
            let is_lower = |seq: &&Seen| seq.tenant == victim.tenant && seq.rank.0 > victim.rank.0;
            assert!(survivors.filter(is_lower).all(Seen::stays), "I14: a lower class of the same tenant was spared");
        }
        if !step.preempted.is_empty() && !step.copies.is_empty() {
            self.seen.saw("fork while blocks ran out");
        }
    }

    /// I15, I19: a sequence that entered came before all of its kind that still wait, and none enters in a step with
    /// preemptions.
    fn check_entry(&mut self, before: &Snapshot, step: &Step) {
        let runs_now = |id: SeqId| !self.sequence(id).block_table().is_empty();
        let entered: Vec<&Seen> = before.waiting().filter(|seq| runs_now(seq.id)).collect();
        assert!(entered.is_empty() || step.preempted.is_empty(), "a sequence enters in a step with preemptions");
        let after = Snapshot::of(&self.scheduler);
        for seq in entered {
            self.check_line(&after, seq);
            let state = self.sequence(seq.id);
            let (cached, known, loading) = (state.num_computed(), state.num_tokens(), state.is_loading());
            let client = &self.clients[&state.request_id()];
            let caching = self.scheduler.limits().enable_prefix_caching && client.request.use_prefix_cache;
            if loading {
                self.seen.saw(if seq.preemptions > 0 { "resumed from a tier" } else { "prefix hit in a tier" });
            }
            assert!(caching || cached == 0, "a request that stays out of the cache has a hit");
            assert!(cached < known, "the last token is always computed");
            if cached > 0 {
                self.seen.saw(if seq.preemptions > 0 { "resumed with its own prefix" } else { "prefix hit" });
                if cached == known - 1 {
                    self.seen.saw("prefix known but for its last token");
                }
            }
            if seq.preemptions == MAX_PREEMPTIONS {
                self.seen.saw("protected");
            }
        }
        if let Some(first) = after.waiting().min_by_key(|seq| seq.rank) {
            let seats: usize = after.seqs.values().filter(|seq| seq.runs).map(Seen::seats).sum();
            if seats + first.seats() > self.scheduler.limits().max_num_seqs {
                self.seen.saw("seat missing");
            }
        }
    }

    /// I33: sequences with known prefix hits count in the sums.
    pub(crate) fn check_hits(&mut self) {
        for seq in self.scheduler.sequences().filter(|seq| !seq.block_table().is_empty() && !seq.is_loading()) {
            let client = self.clients.get_mut(&seq.request_id()).expect("it was admitted");
            let is_first = client.to_enter.remove(&seq.answer());
            if is_first && self.scheduler.limits().enable_prefix_caching && client.request.use_prefix_cache {
                self.prefix_tokens.0 += seq.num_tokens() as u64;
                self.prefix_tokens.1 += seq.num_computed() as u64;
            }
        }
    }

    /// I15: the line of a class. Without a cost model by arrival alone; with one, those that have answered before come
    /// first, those without a deadline come by arrival, and those with one as the targets ask.
    fn check_line(&mut self, after: &Snapshot, entered: &Seen) {
        let by_deadline = self.knowledge != Knowledge::None;
        for other in after.waiting().filter(|other| other.rank.0 == entered.rank.0 && other.tenant == entered.tenant) {
            let resumes = |seq: &Seen| seq.num_generated > 0;
            let alike = resumes(entered) == resumes(other) && (resumes(entered) || entered.ttft == other.ttft);
            let in_turn = alike && (entered.ttft.is_none() || resumes(entered));
            if !by_deadline || in_turn {
                assert!(entered.rank < other.rank, "I15: {:?} enters before {:?}", entered.id, other.id);
            } else if other.rank < entered.rank {
                let earlier = entered.due.is_some() && (other.due.is_none() || entered.due < other.due);
                self.seen.saw(if earlier { "entered for its deadline" } else { "entered past one put off" });
            }
        }
    }

    /// I15: no sequence enters while one of a higher class of the same tenant waits; without a cost model, also while
    /// one of another tenant waits that holds nothing and was served less. The starvation guard's prompt always may.
    fn check_turns(&mut self, before: &Snapshot, step: &Step) {
        let after = Snapshot::of(&self.scheduler);
        let open = self.open_tenants();
        let oldest = before.seqs.values().filter(|seq| seq.is_prompt()).min_by_key(|seq| (seq.rank.1, seq.rank.2));
        let oldest = oldest.map(|seq| seq.id);
        let holds =
            |tenant: u64| before.seqs.values().chain(after.seqs.values()).any(|seq| seq.runs && seq.tenant == tenant);
        for row in &step.decode {
            let seq = self.scheduler.sequence(row.seq).expect("it is planned");
            self.turns.serve(seq, 1, row.samples);
        }
        for chunk in &step.prefill {
            let entered = &before.seqs[&chunk.seq];
            let may_always = entered.runs || oldest == Some(entered.id);
            for other in after.waiting().filter(|_| !may_always) {
                let (own, others) = (entered.rank.0, other.rank.0);
                if other.tenant == entered.tenant {
                    assert!(own <= others, "I15: {:?} enters before {:?} of a higher class", entered.id, other.id);
                } else if !holds(other.tenant)
                    && self.knowledge == Knowledge::None
                    && step.decode.iter().all(|row| before.seqs[&row.seq].runs)
                {
                    let turn = |tenant| (self.turns.served(tenant), open[&tenant]);
                    let in_turn = turn(entered.tenant) <= turn(other.tenant);
                    assert!(in_turn, "I15: {:?} takes the turn of {:?}", entered.id, other.id);
                    self.seen.saw("tenant entered in its turn");
                    if own > others {
                        self.seen.saw("lower class of one tenant before a higher one of another");
                    }
                }
            }
            let seq = self.scheduler.sequence(chunk.seq).expect("it is planned");
            self.turns.serve(seq, chunk.len, chunk.samples);
        }
    }

    /// Open requests of each tenant.
    pub(crate) fn open_tenants(&self) -> BTreeMap<u64, usize> {
        let mut open = BTreeMap::new();
        for client in self.clients.values().filter(|client| !client.is_done()) {
            *open.entry(client.request.tenant).or_default() += 1;
        }
        open
    }

    /// I14: while the oldest prompt gets no rows, only a bounded number of others do.
    fn check_patience(&mut self, before: &Snapshot, step: &Step) {
        let in_line = || before.seqs.values().filter(|seq| seq.is_prompt() && !step.preempted.contains(&seq.id));
        let oldest = in_line().min_by_key(|seq| (seq.rank.1, seq.rank.2));
        let advanced = |id: SeqId| step.rows().any(|rows| rows.seq == id);
        let entered = step.prefill.iter().filter(|chunk| !before.seqs[&chunk.seq].runs).count();
        let began = |id: SeqId| !before.seqs[&id].runs && !self.sequence(id).block_table().is_empty();
        let began: BTreeSet<SeqId> = before.seqs.keys().copied().filter(|&id| began(id)).collect();
        let advanced = |id: SeqId| advanced(id) || began.contains(&id);
        match oldest {
            Some(oldest) if self.passed_over.id == Some(oldest.id) && !advanced(oldest.id) => {
                self.passed_over.steps += usize::from(!step.prefill.is_empty());
                self.passed_over.entered += entered;
                // A waiting one may be too large for the free blocks; then at least no other may enter.
                let bound = (PATIENCE + 1) * self.scheduler.limits().max_prefill_seqs;
                assert!(self.passed_over.entered <= bound, "I14: {:?} starves in the queue", oldest.id);
                assert!(!oldest.runs || self.passed_over.steps <= PATIENCE, "I14: {:?} starves", oldest.id);
                if self.passed_over.steps == PATIENCE {
                    self.seen.saw("patience of the oldest ran out");
                }
            }
            oldest => {
                let out_of_class = oldest.is_some_and(|oldest| {
                    let ahead = |seq: &Seen| seq.rank < oldest.rank && !advanced(seq.id);
                    advanced(oldest.id) && in_line().any(|seq| ahead(seq) && !seq.runs)
                });
                if out_of_class {
                    self.seen.saw("oldest went first out of its class");
                }
                let passed = oldest.is_some_and(|oldest| !advanced(oldest.id)) && !step.prefill.is_empty();
                self.passed_over = match oldest {
                    Some(oldest) if passed => PassedOver { id: Some(oldest.id), steps: 1, entered },
                    oldest => PassedOver { id: oldest.map(|seq| seq.id), ..PassedOver::default() },
                };
            }
        }
    }

    /// I14: late prompts get a share of their class: a bounded number of rows of younger ones before one of theirs.
    fn check_late(&mut self, before: &Snapshot, step: &Step) {
        if self.knowledge == Knowledge::None {
            return;
        }
        let now = self.scheduler.planned().scheduled_at;
        let most = self.scheduler.limits().max_num_batched_tokens;
        let line = |seq: &Seen| (seq.tenant, seq.rank.0);
        let age = |seq: &Seen| (seq.rank.1, seq.rank.2);
        let mut oldest = BTreeMap::<(u64, Priority), &Seen>::new();
        let prompts = || before.seqs.values().filter(|seq| seq.is_prompt() && !step.preempted.contains(&seq.id));
        for seq in prompts().filter(|seq| seq.runs && seq.num_generated == 0 && seq.due.is_some()) {
            let entry = oldest.entry(line(seq)).or_insert(seq);
            if age(seq) < age(entry) {
                *entry = seq;
            }
        }
        // Higher classes of its tenant go before it in any case.
        let is_first = |seq: &Seen| prompts().all(|other| other.tenant != seq.tenant || other.rank.0 >= seq.rank.0);
        oldest.retain(|_, seq| seq.due.is_some_and(|due| due < now.0) && is_first(seq));
        let mut overtaken = Overtaken::new();
        for (line_of, late) in oldest {
            let has_rows = step.prefill.iter().any(|chunk| chunk.seq == late.id);
            let younger = step.prefill.iter().filter(|chunk| {
                let seq = &before.seqs[&chunk.seq];
                line(seq) == line_of && age(seq) > age(late) && seq.num_generated == 0
            });
            let more: usize = younger.map(|chunk| chunk.len).sum();
            let before = self.overtaken.get(&line_of).filter(|(id, _)| *id == late.id).map_or(0, |&(_, rows)| rows);
            let rows = if has_rows { 0 } else { before + more };
            assert!(rows <= LATE_PATIENCE * most, "I14: {:?} is late and {rows} rows went to younger ones", late.id);
            if more > 0 {
                self.seen.saw(if has_rows { "late one beside younger ones" } else { "late one overtaken" });
            }
            overtaken.insert(line_of, (late.id, rows));
        }
        self.overtaken = overtaken;
    }

    /// I18: while a prompt that runs has no rows, the step is full; with targets, at least one prompt has some.
    fn check_nothing_idles(&mut self, before: &Snapshot, step: &Step) {
        let limits = self.scheduler.limits();
        let has_rows = |id: SeqId| step.prefill.iter().any(|chunk| chunk.seq == id);
        let runs = |seq: &&Seen| seq.runs && seq.is_prompt() && !step.preempted.contains(&seq.id);
        let skipped = before.seqs.values().filter(runs).filter(|seq| !has_rows(seq.id)).count();
        let is_full = step.num_rows() == limits.max_num_batched_tokens || step.prefill.len() == limits.max_prefill_seqs;
        let may_skip = is_full || self.knowledge != Knowledge::None && !step.prefill.is_empty();
        assert!(skipped == 0 || may_skip, "I18: {skipped} prompts idle in a step with room");
    }

    /// I17: where the scheduler knows the machine and the clock is right, a step with a stream that has a target lasts
    /// as long as that allows, but for the one row that each prompt may always have.
    pub(crate) fn check_targets(&mut self, before: &Snapshot, step: &Step, work: &Work) {
        let streams = before.seqs.values().filter(|seq| seq.is_decoding() && decodes(step, seq.id));
        let Some(tightest) = streams.filter_map(|seq| seq.tpot).min() else { return };
        if self.knowledge != Knowledge::Exact || self.load.clock != Clock::Exact {
            return;
        }
        let mut decode = Work::default();
        step.decode.iter().for_each(|row| decode.add_decode(self.sequence(row.seq).num_tokens()));
        let mut least = decode;
        let drafted = step.decode.iter().any(|rows| rows.drafts > 0);
        let allowed = tightest.as_secs_f64() * LONGEST_GAP;
        assert!(!drafted || self.machine.seconds(work) <= allowed * 1.001, "I17: drafts make a stream late");
        for chunk in step.prefill.iter().filter(|chunk| chunk.len > 1) {
            least.add_chunk(chunk.start, chunk.len - 1, false);
        }
        let bound = (tightest.as_secs_f64() * LONGEST_GAP).max(self.machine.seconds(&decode) * LEAST_GROWTH);
        let (least, whole) = (self.machine.seconds(&least), self.machine.seconds(work));
        assert!(least <= bound * 1.001, "I17: a stream that wants {tightest:?} gets a step of {least} s");
        if !step.prefill.is_empty() {
            self.seen.saw(if whole <= bound {
                "prompt beside a target"
            } else {
                "prompt row that a target had no room for"
            });
            let limits = self.scheduler.limits();
            let cut = |chunk: &Rows| {
                chunk.samples == 0
                    && chunk.len < limits.max_prefill_chunk
                    && step.num_rows() < limits.max_num_batched_tokens
            };
            if step.prefill.iter().any(cut) {
                self.seen.saw("chunk cut short for a target");
            }
        }
    }

    /// I12: what a step does to its sequences, and to no other.
    /// `drawn`: how many tokens came of each sequence.
    pub(crate) fn check_progress(&self, before: &Snapshot, rows: &[LoweredRows], drawn: &BTreeMap<SeqId, usize>) {
        let planned: BTreeMap<SeqId, &LoweredRows> = rows.iter().map(|row| (row.seq, row)).collect();
        for seq in here(&self.scheduler) {
            let Some(was) = before.seqs.get(&seq.id()) else {
                assert!(seq.answer() > 0 && seq.num_generated() == 1, "I12: {:?} comes from nowhere", seq.id());
                continue;
            };
            let rows = planned.get(&seq.id());
            let drawn = drawn.get(&seq.id()).copied().unwrap_or(0);
            // Drafts that held were computed with it; those that did not are as if they had never been.
            let len = rows.map_or(0, |rows| if rows.drafts > 0 { drawn } else { rows.len });
            assert_eq!(seq.num_computed(), was.num_computed + len, "I12: {:?} advances by its rows", seq.id());
            let sampled = match rows {
                Some(rows) if rows.drafts > 0 => drawn,
                _ => usize::from(len > 0 && was.num_computed + len == was.num_tokens),
            };
            assert_eq!(seq.num_tokens(), was.num_tokens + sampled, "I12: {:?} has one more token", seq.id());
            assert_eq!(seq.num_preemptions(), was.preemptions, "I12: {:?} was preempted by a result", seq.id());
        }
    }

    /// I26: a step that failed costs its sequences what they had in the cache and nothing else, and the others nothing.
    pub(crate) fn check_abandoned(&self, before: &Snapshot, rows: &[LoweredRows]) {
        for seq in here(&self.scheduler) {
            let was = &before.seqs[&seq.id()];
            assert_eq!(
                (seq.num_tokens(), seq.num_preemptions()),
                (was.num_tokens, was.preemptions),
                "I26: what is known"
            );
            let failed = rows.iter().any(|row| row.seq == seq.id());
            let computed = if failed { 0 } else { was.num_computed };
            assert_eq!(seq.num_computed(), computed, "I26: {:?} after a failed step", seq.id());
            assert_eq!(seq.block_table().is_empty(), failed || !was.runs, "I26: blocks of {:?}", seq.id());
        }
    }

    /// I33: every reported number equals a recount.
    pub(crate) fn check_gauges(&self) {
        let scheduler = &self.scheduler;
        assert_eq!(scheduler.used_blocks(), held_blocks(scheduler), "I33: blocks held or read");
        let (swapped, mine) = (scheduler.swap_stats(), &self.swapped);
        assert_eq!(swapped.loaded_from_host, mine.loaded_from_host, "I33: loads from memory");
        assert_eq!(swapped.loaded_from_disk, mine.loaded_from_disk, "I33: loads from disk");
        assert_eq!(swapped.landed, mine.landed, "I33: blocks that landed");
        assert_eq!((swapped.read_faults, swapped.write_faults), (mine.read_faults, mine.write_faults), "I33: faults");
        let stats = scheduler.prefix_stats();
        assert!(scheduler.cached_blocks() <= scheduler.limits().num_blocks, "I33: blocks cached");
        assert!(stats.hit_tokens <= stats.queried_tokens, "I33: hits");
    }

    /// I33 for the step log.
    pub(crate) fn check_record(
        &mut self,
        step: &Step,
        rows: &[LoweredRows],
        work: &Work,
        times: [Nanos; 3],
        record: &StepRecord,
    ) {
        assert_eq!(record.step, step.id);
        assert_eq!([record.scheduled_at, record.began_at, record.completed_at], times);
        assert_eq!(record.work, *work, "I33: the work of a step");
        assert_eq!(record.copied_blocks, step.copies.len());
        assert_eq!(record.preempted.len(), step.preempted.len());
        assert_eq!((record.saved_blocks, record.spilled_blocks), (step.saves.len(), step.spills.len()));
        assert_eq!(record.loaded_blocks.iter().sum::<usize>(), step.loads.len());
        let logged = record.decode.iter().chain(&record.prefill);
        let logged: Vec<_> = logged.map(|row| (row.request, row.seq, row.start, row.len, row.drafts)).collect();
        let computed = rows.iter().map(|row| (row.request, row.seq, row.start, row.len, row.drafts));
        let computed: Vec<_> = computed.collect();
        assert_eq!(logged, computed, "the log has every row under its request");
        assert!(record.evicted_blocks <= record.taken_blocks);
        (0..record.evicted_blocks).for_each(|_| self.seen.saw("block evicted"));
        let stats = self.scheduler.prefix_stats();
        assert_eq!((stats.queried_tokens, stats.hit_tokens), self.prefix_tokens, "I33: prefix hits");
    }
}

/// The sequences that wait or run here.
fn here(scheduler: &Scheduler) -> impl Iterator<Item = &Sequence> {
    scheduler.sequences().filter(|seq| !seq.is_in_remote_prefill())
}

/// Whether a sequence has a decode row in this step.
fn decodes(step: &Step, id: SeqId) -> bool {
    step.decode.iter().any(|row| row.seq == id)
}
