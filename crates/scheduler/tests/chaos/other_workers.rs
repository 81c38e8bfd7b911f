//! Other workers: answers that began there, prompts that are read there and come, late or never; and those that read
//! blocks here, of answers that run or are kept.

use std::collections::BTreeSet;

use protocol::{Nanos, RequestId, TokenId};
use scheduler::{AdmitError, BlockRead, PinnedAnswer, ReceiveError, Request, Sequence, Step, TokenEvent, UnpinReason};
use testing::Dice;

use crate::model::block_of;
use crate::world::{Answer, Chaos};

/// What other workers do, in percent: of requests, or of each that is open in a tick. Nothing at all in two of five
/// seeds.
#[derive(Default)]
pub(crate) struct OtherWorkers {
    /// Requests of which tokens were generated before they come.
    resumed: u64,
    /// Requests whose prompt is read elsewhere.
    expected: u64,
    /// Expected ones that come in a tick.
    ends: u64,
    /// Of these, those of which nothing comes.
    fails: u64,
    /// Requests whose blocks are kept, for how long in nanoseconds, and those of which they are released in a tick.
    keeps: u64,
    longest_lease: u64,
    releases: u64,
    /// Answers of which a block begins to be read in a tick, and reads that end in one.
    reads: u64,
    reads_end: u64,
    /// Requests a block of which begins to land in a tick; of these blocks, those out of order; those that end their
    /// way in a tick; and those that are spoiled then.
    landings: u64,
    out_of_order: u64,
    landings_end: u64,
    spoiled: u64,
}

/// A pinned answer, as the peer that requested it sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptSeen {
    pub(crate) request: RequestId,
    answer: usize,
    until: Nanos,
    blocks: usize,
}

impl OtherWorkers {
    pub(crate) fn from(rng: &mut Dice) -> OtherWorkers {
        if rng.percent(40) {
            return OtherWorkers::default();
        }
        OtherWorkers {
            resumed: rng.pick(&[0, 20, 60]),
            expected: rng.pick(&[0, 20, 60]),
            ends: rng.pick(&[3, 20, 100]),
            fails: rng.pick(&[0, 20, 100]),
            keeps: rng.pick(&[0, 30, 100]),
            longest_lease: rng.pick(&[0, 1_000_000_000, u64::MAX]),
            releases: rng.pick(&[0, 1, 20]),
            reads: rng.pick(&[0, 5, 30]),
            reads_end: rng.pick(&[5, 30, 100]),
            landings: rng.pick(&[20, 50, 100]),
            out_of_order: rng.pick(&[0, 5, 30]),
            landings_end: rng.pick(&[30, 100, 100]),
            spoiled: rng.pick(&[0, 5, 50]),
        }
    }

    /// From now on everything comes to its end.
    pub(crate) fn end_all(&mut self) {
        (self.ends, self.reads, self.reads_end) = (100, 0, 100);
        (self.landings, self.landings_end) = (0, 100);
    }
}

/// What happened to a request before it came.
pub(crate) enum Before {
    Nothing,
    /// It still happens.
    Expected,
    /// Of each answer what was generated; none of those that ended.
    Generated(Vec<Option<Vec<TokenId>>>),
}

impl Before {
    /// Answers with a sequence of their own from the beginning; the others are forked.
    pub(crate) fn sequences(&self) -> BTreeSet<usize> {
        match self {
            Before::Generated(generated) if knows_some(generated) => {
                (0..generated.len()).filter(|&answer| generated[answer].is_some()).collect()
            }
            _ => BTreeSet::from([0]),
        }
    }
}

/// Whether an answer has a token, or has ended.
fn knows_some(generated: &[Option<Vec<TokenId>>]) -> bool {
    !generated.iter().all(|tokens| tokens.as_ref().is_some_and(Vec::is_empty))
}

/// As the scheduler wants them.
pub(crate) fn as_slices(generated: &[Option<Vec<TokenId>>]) -> Vec<Option<&[TokenId]>> {
    generated.iter().map(|tokens| tokens.as_deref()).collect()
}

impl Chaos {
    /// Decides it for a request that comes now.
    pub(crate) fn before_it_came(&mut self, answers: &mut [Answer]) -> Before {
        let OtherWorkers { resumed, expected, .. } = self.other_workers;
        if self.far.percent(resumed) {
            let generated = generate(&mut self.far, answers);
            deliver(answers, &generated);
            return Before::Generated(generated);
        }
        if self.far.percent(expected) { Before::Expected } else { Before::Nothing }
    }

    pub(crate) fn note_before(&mut self, request: &Request, before: &Before) {
        match before {
            Before::Nothing => {}
            Before::Expected => _ = self.expected.insert(request.id),
            Before::Generated(generated) => self.note_generated(request, generated),
        }
    }

    fn note_generated(&mut self, request: &Request, generated: &[Option<Vec<TokenId>>]) {
        if !knows_some(generated) {
            return self.seen.saw("resumed without a token");
        }
        self.turns.has_paid(request);
        self.seen.saw("resumed from elsewhere");
        if generated.iter().flatten().count() > 1 {
            self.seen.saw("resumed with several answers");
        }
        if generated.iter().any(Option::is_none) {
            self.seen.saw("resumed after some answers ended");
        }
    }

    /// Everything that comes from there in a tick.
    pub(crate) fn receive_from_elsewhere(&mut self) {
        self.begin_landings();
        self.end_landings();
        self.end_remote_prefills();
        self.release_some();
        self.begin_reads();
        self.end_reads();
    }

    /// Whether another worker will still report something.
    pub(crate) fn is_awaited_elsewhere(&self) -> bool {
        !self.expected.is_empty() || !self.reads.is_empty() || !self.landings.is_empty()
    }

    /// Some of what is expected comes, or turns out to be lost.
    fn end_remote_prefills(&mut self) {
        for id in self.expected.clone() {
            if !self.far.percent(self.other_workers.ends) {
                continue;
            }
            let request = self.clients[&id].request.clone();
            let generated = if self.far.percent(self.other_workers.fails) {
                vec![Some(Vec::new()); request.num_answers]
            } else {
                generate(&mut self.far, &self.clients[&id].answers)
            };
            let outcome = self.scheduler.remote_prefill_ended(id, &as_slices(&generated), Nanos(self.now));
            self.note(&outcome);
            match outcome {
                Ok(()) => {
                    self.expected.remove(&id);
                    let client = self.clients.get_mut(&id).expect("it was admitted");
                    deliver(&mut client.answers, &generated);
                    let before = Before::Generated(generated.clone());
                    client.to_enter = before.sequences();
                    client.sequences = before.sequences();
                    self.seen.saw("expected one came");
                    self.note_generated(&request, &generated);
                }
                Err(AdmitError::HasEnded { answer }) => {
                    check_has_ended(&self.clients[&id].answers[answer], generated[answer].as_deref());
                    self.seen.saw("expected one has ended");
                }
                Err(error) => panic!("{id:?} was admitted: {error}"),
            }
            self.check_all();
        }
    }

    /// Blocks of what is expected, or has come and waits, are on their way. The first that is missing comes next, twice
    /// now and then, or any.
    fn begin_landings(&mut self) {
        let of: Vec<RequestId> = if self.far.percent(20) {
            let runs = |id: RequestId| self.holding().any(|seq| seq.request_id() == id);
            let all = self.scheduler.sequences().map(Sequence::request_id).collect::<BTreeSet<_>>();
            all.into_iter().filter(|&id| !runs(id)).collect()
        } else {
            self.expected.iter().copied().collect()
        };
        for id in of {
            if !self.far.percent(self.other_workers.landings) {
                continue;
            }
            let (request, block_size) = (self.clients[&id].request.clone(), self.scheduler.limits().block_size);
            let blocks = request.prompt.len() / block_size;
            let next = self.next_landing.get(&id).copied().unwrap_or(0);
            let index =
                if self.far.percent(self.other_workers.out_of_order) { self.far.within(0..=blocks) } else { next };
            let outcome = self.scheduler.begin_receive(id, index);
            self.note(&outcome);
            match outcome {
                Ok(slot) => {
                    assert!(self.landings.iter().all(|(other, _)| *other != slot), "I37: {slot:?} is given twice");
                    let tokens = self.tokens_of_first(id);
                    assert!((index + 1) * block_size < tokens.len(), "I37: the last token is computed here");
                    let bytes = block_of(request.salt, &tokens[..(index + 1) * block_size], block_size);
                    self.cache.land(slot, None, self.now);
                    self.landings.push((slot, bytes));
                    self.landed.remove(&slot);
                    self.next_landing.insert(id, index + 1);
                    self.seen.saw("block on its way here");
                }
                Err(ReceiveError::Known) => {
                    self.next_landing.insert(id, index + 1);
                    self.seen.saw("block is here already");
                }
                Err(ReceiveError::NoParent) => {
                    assert!(index > 0, "I37: the first block has no parent");
                    self.next_landing.insert(id, index - 1);
                    self.seen.saw("block before its parent");
                }
                Err(ReceiveError::NoRoom) => self.seen.saw("no slot for a block"),
                Err(ReceiveError::NotCached) => self.seen.saw("block that is not cached"),
                Err(ReceiveError::NotWaiting) => panic!("I37: {id:?} waits"),
            }
            self.check_all();
        }
    }

    /// The sequences that hold blocks.
    fn holding(&self) -> impl Iterator<Item = &Sequence> {
        self.scheduler.sequences().filter(|seq| !seq.block_table().is_empty())
    }

    /// What the first answer of a request that waits knows.
    fn tokens_of_first(&self, id: RequestId) -> Vec<TokenId> {
        let seqs = self.scheduler.sequences().filter(|seq| seq.request_id() == id);
        seqs.min_by_key(|seq| seq.answer()).expect("it is here").tokens().to_vec()
    }

    fn end_landings(&mut self) {
        for (slot, bytes) in self.landings.clone() {
            if !self.far.percent(self.other_workers.landings_end) {
                continue;
            }
            self.landings.retain(|(other, _)| *other != slot);
            let good = !self.far.percent(self.other_workers.spoiled);
            if good {
                self.cache.land(slot, Some(&bytes), 0);
            }
            let has_landed = self.scheduler.end_receive(slot, good);
            assert!(good || !has_landed, "I37: spoiled bytes are believed");
            self.swapped.landed += u64::from(has_landed);
            if has_landed {
                self.landed.insert(slot);
            }
            self.seen.saw(match (good, has_landed) {
                (_, true) => "block landed",
                (true, false) => "block came for nothing",
                (false, _) => "block came spoiled",
            });
            self.check_all();
        }
    }

    /// A peer will fetch the blocks.
    pub(crate) fn maybe_keep(&mut self, id: RequestId) {
        if self.far.percent(self.other_workers.keeps) {
            let longest = self.other_workers.longest_lease;
            let lease = Nanos(if longest == u64::MAX { longest } else { self.far.bits() % (longest + 1) });
            assert!(self.scheduler.pin(id, lease), "{id:?} is open");
            self.leases.insert(id, lease);
        }
    }

    /// An answer has ended by itself.
    pub(crate) fn expect_kept(&mut self, event: &TokenEvent) {
        let TokenEvent::Finished { request, answer, .. } = *event else { return };
        let Some(lease) = self.leases.get(&request) else { return };
        let client = &self.clients[&request];
        let generated = client.answers[answer].delivered.len();
        // What was drawn last was never computed.
        let computed = client.request.prompt.len() + generated.saturating_sub(1);
        let blocks = computed / self.scheduler.limits().block_size;
        let until = Nanos(self.now.saturating_add(lease.0));
        // What is scored has one sequence, whatever the number of answers.
        let has_sequence = generated > 0 || client.sequences.contains(&answer);
        if blocks > 0 && has_sequence {
            self.kept.push(KeptSeen { request, answer, until, blocks });
            self.seen.saw("answer kept");
        }
    }

    /// What a plan says of kept blocks. Afterwards no lease has ended that is still there.
    pub(crate) fn check_losses(&mut self, step: &Step, now: Nanos) {
        for lost in &step.lost {
            let is_it = |kept: &KeptSeen| (kept.request, kept.answer) == (lost.request, lost.answer);
            let place = self.kept.iter().position(is_it).expect("I36: what is lost was kept");
            let kept = &mut self.kept[place];
            assert!(lost.left < kept.blocks, "I36: {lost:?} of {kept:?}");
            match lost.why {
                UnpinReason::Lease => {
                    assert!(kept.until <= now && lost.left == 0, "I36: {lost:?} of {kept:?} at {now:?}")
                }
                UnpinReason::Blocks => {}
            }
            kept.blocks = lost.left;
            self.seen.saw(match (lost.why, lost.left) {
                (UnpinReason::Lease, _) => "lease ended",
                (UnpinReason::Blocks, 0) => "kept blocks all taken",
                (UnpinReason::Blocks, _) => "kept blocks taken in part",
            });
            self.kept.retain(|kept| kept.blocks > 0);
        }
        assert!(self.kept.iter().all(|kept| kept.until > now), "I36: a lease does not end");
    }

    fn release_some(&mut self) {
        let requests: BTreeSet<RequestId> = self.kept.iter().map(|kept| kept.request).collect();
        for id in requests {
            if self.far.percent(self.other_workers.releases) {
                assert!(self.scheduler.unpin(id) && !self.scheduler.unpin(id), "{id:?} is kept once");
                self.kept.retain(|kept| kept.request != id);
                self.seen.saw("kept answer released");
            } else if self.far.percent(self.other_workers.releases) {
                let until = Nanos(self.now.saturating_add(self.far.bits() % 1_000_000_000));
                assert!(self.scheduler.pin_until(id, until), "{id:?} is kept");
                self.kept.iter_mut().filter(|kept| kept.request == id).for_each(|kept| kept.until = until);
            } else {
                continue;
            }
            self.check_all();
        }
    }

    fn begin_reads(&mut self) {
        let kept = self.kept.iter().map(|kept| (kept.request, kept.answer, true));
        let running = self.scheduler.sequences().map(|seq| (seq.request_id(), seq.answer(), false));
        let all: Vec<(RequestId, usize, bool)> = kept.chain(running).collect();
        let block_size = self.scheduler.limits().block_size;
        for (request, answer, is_kept) in all {
            if !self.far.percent(self.other_workers.reads) {
                continue;
            }
            let blocks = self.scheduler.full_blocks(request, answer).len();
            let index = self.far.within(0..=blocks);
            let Some(read) = self.scheduler.begin_read(request, answer, index) else {
                assert!(index == blocks || is_kept, "I36: what runs can be read");
                self.seen.saw(if index == blocks { "no block to read" } else { "block to read is set aside" });
                continue;
            };
            assert_eq!((read.request, read.answer, read.index), (request, answer, index));
            let client = &self.clients[&request];
            let mut tokens = client.request.prompt.to_vec();
            tokens.extend(&client.answers[answer].delivered);
            let holds = block_of(client.request.salt, &tokens[..(index + 1) * block_size], block_size);
            self.reads.push((read, holds));
            self.seen.saw(if is_kept { "kept block read" } else { "running answer's block read" });
            self.check_all();
        }
    }

    fn end_reads(&mut self) {
        for (read, holds) in self.reads.clone() {
            if !self.far.percent(self.other_workers.reads_end) {
                continue;
            }
            let place = self.reads.iter().position(|(other, _)| *other == read).expect("it was just seen");
            self.reads.remove(place);
            let is = self.cache.read_block(read.block.index());
            assert!(is == holds, "I36: {read:?} is another block at its end");
            let is_there = self.scheduler.full_blocks(read.request, read.answer).get(read.index) == Some(&read.block);
            self.seen.saw(if is_there { "read ended" } else { "read outlived its answer" });
            self.scheduler.read_ended(read);
            self.check_all();
        }
    }

    /// Whether blocks are not free for the sake of readers alone.
    pub(crate) fn reads_hold_blocks(&self) -> bool {
        let is_held = |read: &BlockRead| self.holding().any(|seq| seq.block_table().contains(&read.block));
        self.reads.iter().any(|(read, _)| !is_held(read))
    }

    /// I12, I19: what is expected is that and nothing else. I36: what is kept is what was asked for.
    pub(crate) fn check_elsewhere(&self) {
        let seen = self.scheduler.pinned_answers().map(|kept| {
            let PinnedAnswer { request, answer, until, .. } = *kept;
            KeptSeen { request, answer, until, blocks: kept.blocks.len() }
        });
        assert_eq!(seen.collect::<Vec<_>>(), self.kept, "I36: what is kept");
        let expecting = self.scheduler.sequences().filter(|seq| seq.is_in_remote_prefill());
        assert_eq!(expecting.count(), self.expected.len(), "I12: expected ones");
        for &id in &self.expected {
            assert!(
                self.scheduler.in_remote_prefill(id).is_some_and(|request| request.id == id),
                "I12: {id:?} is expected"
            );
        }
    }
}

/// Some of what each answer says when it runs alone, or all of it. Some have ended.
fn generate(rng: &mut Dice, answers: &[Answer]) -> Vec<Option<Vec<TokenId>>> {
    let goes_on = rng.within(0..=answers.len() - 1);
    let all = rng.percent(5);
    let of = |(index, answer): (usize, &Answer)| {
        let expected = &answer.expected.0;
        let len = rng.within(0..=expected.len() - usize::from(!all && !expected.is_empty()));
        let has_ended = index != goes_on && rng.percent(20);
        (!has_ended).then(|| expected[..len].to_vec())
    };
    answers.iter().enumerate().map(of).collect()
}

/// Tokens that the client of an answer already has.
fn deliver(answers: &mut [Answer], generated: &[Option<Vec<TokenId>>]) {
    for (answer, tokens) in answers.iter_mut().zip(generated) {
        match tokens {
            Some(tokens) => answer.delivered.clone_from(tokens),
            None => (answer.delivered, answer.finished) = (answer.expected.0.clone(), Some(answer.expected.1)),
        }
    }
}

/// It was refused because all of it was there.
pub(crate) fn check_has_ended(answer: &Answer, generated: Option<&[TokenId]>) {
    let generated = generated.expect("one that ended is not asked for");
    assert!(!generated.is_empty() && generated == answer.expected.0, "it goes on");
}
