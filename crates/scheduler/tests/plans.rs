//! The scheduler as a specification: tables of what arrives and what is planned.
//!
//! ```text
//! step | arrives              | plan                         | ends      | used
//! 1    | A prompt=3 output=2  | prefill A[0..3]              |           | 1
//! 2    | B prompt=12 output=1 | decode A, prefill B[0..7]    | A length  | 4
//! ```
//!
//! Each row admits what arrives, plans one step and completes it; `A[0..3]` are positions. Other words of a row:
//! `n=` answers (named `A.0`, `A.1`; `A` while they are one prompt), `priority=`, `like=A:8` (its first 8 prompt tokens
//! are A's), `salt=`, `cache=off`, `min=` tokens, `eos=3` (the model says the stop token as its third token and ever
//! after), `cancel A`, `stop A.1`, both also `in flight`: between plan and completion. `C prompt=99: NeverFits` is
//! refused so. `offer A=4` has four drafts for A's next tokens, of which none hold unless `right=` says how many
//! would; in a plan, `A+4` are these drafts. `fail in flight` abandons the step. In a plan, `x3` is a chunk from which
//! three tokens are sampled when not one, `copy 4>7` copies a block. Where there are tiers (`host=` and `disk=`
//! slots), `save 4>h0`, `load h0>A` and `spill h0>d1` move contents. Host memory answers at once; what the disk was
//! asked for in one row ends with the next, well, or not where the row says `disk fails`, or later where it says `disk
//! waits`. `resume A prompt=6 output=9 knows=3` comes with three tokens of its answer, with several answers as many of
//! each (`knows=3/0/-`: the third has ended); `expect A prompt=6 output=9` is read elsewhere, until `come A knows=1`.
//! `keep=7` keeps the blocks of an answer for 7 ns from its end, and it is 0 until `at 9`; `release A` lets go of them,
//! and in the column `lost` `A:1 blocks` has one left. `read A:1` begins to read the second block, or `cannot read
//! A:1`; `reads end`. `land A:1 good` brings it from elsewhere, or `spoiled`, or it has no slot: `NoParent`. A table
//! may leave out the columns after `plan`. `check_invariants` runs after every call.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use protocol::{FinishReason, Nanos, Priority, RequestId, StopRules, TokenId};
use scheduler::{
    BlockLoad, BlockRead, DraftProposal, DraftSource, Limits, LimitsError, Request, RowOutput, Rows, Scheduler, SeqId,
    Sequence, SlotSpill, Step, StepOutput, Tier, TierSizes, TierSlot, TokenEvent, UnpinReason,
};
use testing::plans;

const EOS: TokenId = 1;

/// One case after the other; the output of a failure ends with the case's name.
#[test]
fn plans_are_as_they_are_written() {
    let cases = include_str!("plans.txt").split("\n\n").skip(1);
    let mut tables = 0;
    for case in cases {
        let mut lines = case.lines().filter(|line| !line.starts_with("# ")).peekable();
        if let Some(name) = lines.next_if(|line| line.starts_with("## ")) {
            println!("{name}");
        }
        let setup = lines.next().filter(|setup| *setup != "defaults").unwrap_or_default();
        check(setup, &lines.collect::<Vec<_>>().join("\n"));
        tables += 1;
    }
    assert!(tables > 60, "{tables} tables");
}

#[test]
fn a_low_class_is_passed_over_sixteen_times_at_most() {
    let mut table = String::from("step | arrives | plan\n");
    table += "1 | Z prompt=4 output=1 priority=9, A0 prompt=4 output=1 | prefill A0[0..4]\n";
    for step in 1..16 {
        table += &format!("{} | A{step} prompt=4 output=1 | prefill A{step}[0..4]\n", step + 1);
    }
    table += "17 | A16 prompt=4 output=1 | prefill Z[0..4]\n";
    table += "18 | | prefill A16[0..4]\n";
    check("tokens_per_step=4 seqs=4", &table);
}

#[test]
fn limits_that_cannot_be_served_are_refused() {
    let good = World::new("").scheduler.limits().clone();
    let refused = |change: fn(&mut Limits)| {
        let mut limits = good.clone();
        change(&mut limits);
        Scheduler::new(limits).err().expect("refused")
    };
    assert_eq!(refused(|limits| limits.block_size = 0), LimitsError::Zero { limit: "block_size" });
    assert_eq!(refused(|limits| limits.max_prefill_seqs = 0), LimitsError::Zero { limit: "max_prefill_seqs" });
    let too_small = LimitsError::StepTooSmall { max_num_batched_tokens: 3, max_num_seqs: 4 };
    assert_eq!(refused(|limits| limits.max_num_batched_tokens = 3), too_small);
    assert_eq!(refused(|limits| limits.whole_prompts = true), LimitsError::WholePrompts);
    let too_many = LimitsError::TooManyBlocks { num_blocks: usize::MAX / 2 };
    assert_eq!(refused(|limits| limits.num_blocks = usize::MAX / 2), too_many);
}

#[test]
fn limits_do_not_print_their_key() {
    let limits = World::new("").scheduler.limits().clone();
    assert!(!format!("{limits:?}").contains("key"));
}

struct World {
    scheduler: Scheduler,
    names: BTreeMap<RequestId, String>,
    asked: BTreeMap<String, (Request, Option<usize>)>,
    /// What the disk was asked for.
    reads: Vec<BlockLoad>,
    writes: Vec<SlotSpill>,
    /// How many drafts of a sequence hold.
    right: BTreeMap<SeqId, usize>,
    now: Nanos,
}

fn check(setup: &str, table: &str) {
    let mut world = World::new(setup);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let (header, rows) = rows.split_first().expect("a table has a header");
    let mut expected = String::new();
    let mut actual = String::new();
    for row in rows {
        let arrives = row[column(header, "arrives").expect("a table says what arrives")];
        let outcome = world.row(arrives);
        for (name, cell) in header.iter().zip(row) {
            let actual_cell = match *name {
                "step" | "arrives" => *cell,
                "plan" => &outcome.plan,
                "ends" => &outcome.ends,
                "used" => &outcome.used,
                "waiting" => &outcome.waiting,
                "lost" => &outcome.lost,
                _ => panic!("no column {name}"),
            };
            write!(expected, "{cell} | ").unwrap();
            write!(actual, "{actual_cell} | ").unwrap();
        }
        expected.push('\n');
        actual.push('\n');
    }
    assert!(expected == actual, "{setup}\nexpected\n{expected}\nactual\n{actual}");
}

fn column(header: &[&str], name: &str) -> Option<usize> {
    header.iter().position(|&column| column == name)
}

/// What the model says as token `nth` of an answer, from 1.
fn said(request: &Request, eos: Option<usize>, answer: usize, nth: usize) -> TokenId {
    let unique = 1_000_000 + request.id.0 * 10_000 + answer as u64 * 1000;
    if eos.is_some_and(|eos| nth >= eos) { EOS } else { (unique + nth as u64) as u32 }
}

/// Tokens of each answer: `3/0/-`.
fn generated(request: &Request, eos: Option<usize>, knows: &str) -> Vec<Option<Vec<TokenId>>> {
    let of = |(answer, count): (usize, &str)| {
        let count: usize = count.parse().ok()?;
        Some((1..=count).map(|nth| said(request, eos, answer, nth)).collect())
    };
    knows.split('/').enumerate().map(of).collect()
}

struct Outcome {
    plan: String,
    ends: String,
    used: String,
    waiting: String,
    lost: String,
}

impl World {
    fn new(setup: &str) -> World {
        let mut limits = Limits {
            num_blocks: 64,
            max_model_len: 100,
            max_num_batched_tokens: 64,
            max_prefill_chunk: 64,
            max_queued_requests: 100,
            max_queued_tokens: 1000,
            ..plans::small()
        };
        let mut tiers = TierSizes::default();
        for (name, value) in setup.split_whitespace().map(|word| word.split_once('=').expect("name=value")) {
            let value: usize = value.parse().expect("a number");
            match name {
                "block_size" => limits.block_size = value,
                "blocks" => limits.num_blocks = value,
                "context" => limits.max_model_len = value,
                "seqs" => limits.max_num_seqs = value,
                "tokens_per_step" => limits.max_num_batched_tokens = value,
                "chunk" => limits.max_prefill_chunk = value,
                "prompts_per_step" => limits.max_prefill_seqs = value,
                "queue" => limits.max_queued_requests = value,
                "queue_tokens" => limits.max_queued_tokens = value,
                "cache" => limits.enable_prefix_caching = value == 1,
                "whole" => limits.whole_prompts = value == 1,
                "host" => tiers.host_slots = value,
                "disk" => tiers.disk_slots = value,
                _ => panic!("no limit {name}"),
            }
        }
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        scheduler.set_tiers(tiers);
        World {
            scheduler,
            names: BTreeMap::new(),
            asked: BTreeMap::new(),
            right: BTreeMap::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            now: Nanos(0),
        }
    }

    fn row(&mut self, arrives: &str) -> Outcome {
        let (in_flight, before): (Vec<&str>, Vec<&str>) = arrives
            .split(',')
            .map(str::trim)
            .filter(|act| !act.is_empty())
            .partition(|act| act.ends_with(" in flight"));
        if !before.contains(&"disk waits") {
            self.disk_ends(!before.contains(&"disk fails"));
        }
        before.into_iter().filter(|act| !act.starts_with("disk ")).for_each(|act| self.act(act));
        let step = self.scheduler.schedule(self.now);
        self.scheduler.check_invariants();
        let lost = step.lost.iter().map(|lost| {
            let why = if lost.why == UnpinReason::Lease { "lease" } else { "blocks" };
            format!("{}:{} {why}", self.answer_name(lost.request, lost.answer), lost.left)
        });
        let lost = lost.collect::<Vec<_>>().join(", ");
        let plan = self.describe(&step);
        self.transfer(&step);
        let output = self.compute(&step);
        let (failures, in_flight): (Vec<&str>, Vec<&str>) =
            in_flight.into_iter().partition(|act| act.starts_with("fail "));
        in_flight.into_iter().for_each(|act| self.act(act.trim_end_matches(" in flight")));
        let mut ends = Vec::new();
        if !failures.is_empty() {
            self.scheduler.abandon(step.id);
            self.scheduler.check_invariants();
        } else if !step.is_empty() {
            let completed = self.scheduler.complete(output, self.now);
            self.scheduler.check_invariants();
            for event in completed.events {
                if let TokenEvent::Finished { request, answer, reason } = event {
                    let reason = match reason {
                        FinishReason::Length => "length",
                        FinishReason::Stop(Some(EOS)) => "stop",
                        other => panic!("{other:?}"),
                    };
                    ends.push(format!("{} {reason}", self.answer_name(request, answer)));
                }
            }
        }
        let used = self.scheduler.used_blocks().to_string();
        let waits = |seq: &&Sequence| seq.block_table().is_empty() && !seq.is_in_remote_prefill();
        let waiting = self.scheduler.sequences().filter(waits).count().to_string();
        Outcome { plan, ends: ends.join(", "), used, waiting, lost }
    }

    fn transfer(&mut self, step: &Step) {
        self.writes.extend(&step.spills);
        for &load in &step.loads {
            match load.slot.tier {
                Tier::Host => self.scheduler.load_ended(load, true, Nanos(0)),
                Tier::Disk => self.reads.push(load),
            }
            self.scheduler.check_invariants();
        }
    }

    fn disk_ends(&mut self, good: bool) {
        for spill in std::mem::take(&mut self.writes) {
            self.scheduler.spill_ended(spill, good, Nanos(0));
            self.scheduler.check_invariants();
        }
        for load in std::mem::take(&mut self.reads) {
            self.scheduler.load_ended(load, good, Nanos(0));
            self.scheduler.check_invariants();
        }
    }

    fn act(&mut self, act: &str) {
        if let Some(name) = act.strip_prefix("cancel ") {
            assert!(self.scheduler.abort(self.asked[name].0.id), "{name} was there to cancel");
        } else if let Some(offer) = act.strip_prefix("offer ") {
            let (name, words) = offer.split_once('=').expect("offer A=4");
            let (len, right) = words.split_once(" right=").unwrap_or((words, "0"));
            let id = self.asked[name].0.id;
            let seq = self.scheduler.sequences().find(|seq| seq.request_id() == id).expect("it is there").id();
            let len = len.parse().expect("how many drafts");
            self.scheduler.propose(DraftProposal { seq, source: DraftSource(0), len, strength: 0 });
            self.right.insert(seq, right.parse().expect("how many hold"));
        } else if let Some(answer) = act.strip_prefix("stop ") {
            let (name, answer) = answer.split_once('.').unwrap_or((answer, "0"));
            self.scheduler.stop(self.asked[name].0.id, answer.parse().expect("an answer's number"));
        } else if let Some(now) = act.strip_prefix("at ") {
            self.now = Nanos(now.parse().expect("a time"));
        } else if let Some(block) = act.strip_prefix("land ") {
            let (block, outcome) = block.split_once(' ').expect("land A:1 good");
            let (name, index) = block.split_once(':').expect("A:1");
            match self.scheduler.begin_receive(self.asked[name].0.id, index.parse().expect("which block")) {
                Ok(slot) => {
                    self.scheduler.check_invariants();
                    let landed = self.scheduler.end_receive(slot, outcome == "good");
                    assert_eq!(if landed { "good" } else { "spoiled" }, outcome, "{act}");
                }
                Err(error) => assert_eq!(format!("{error:?}"), outcome, "{act}"),
            }
        } else if let Some(name) = act.strip_prefix("release ") {
            assert!(self.scheduler.unpin(self.asked[name].0.id), "{name} was kept");
        } else if let Some(of) = act.strip_prefix("read ") {
            assert!(self.begin_read(of).is_some(), "{act}");
        } else if let Some(of) = act.strip_prefix("cannot read ") {
            assert_eq!(self.begin_read(of), None, "{act}");
        } else if act == "reads end" {
            self.scheduler.reads().to_vec().into_iter().for_each(|read| self.scheduler.read_ended(read));
        } else if let Some(come) = act.strip_prefix("come ") {
            let (name, knows) = come.split_once(" knows=").expect("come A knows=1");
            let (request, eos) = self.asked[name].clone();
            let generated = generated(&request, eos, knows);
            let generated: Vec<_> = generated.iter().map(Option::as_deref).collect();
            self.scheduler.remote_prefill_ended(request.id, &generated, Nanos(0)).expect("it goes on");
        } else {
            let (request, refusal) = act.split_once(": ").unwrap_or((act, ""));
            let outcome = self.admit(request);
            let outcome = outcome.err().map(|error| format!("{error:?}")).unwrap_or_default();
            let outcome = outcome.split_whitespace().next().unwrap_or_default();
            assert_eq!(outcome, refusal, "{act}");
        }
        self.scheduler.check_invariants();
    }

    /// Of an answer's block: `A:1`.
    fn begin_read(&mut self, of: &str) -> Option<BlockRead> {
        let (name, index) = of.split_once(':').expect("A:1");
        self.scheduler.begin_read(self.asked[name].0.id, 0, index.parse().expect("which block"))
    }

    fn admit(&mut self, words: &str) -> Result<(), scheduler::AdmitError> {
        let (door, words) = match words.split_once(' ') {
            Some((door @ ("resume" | "expect"), words)) => (door, words),
            _ => ("admit", words),
        };
        let mut words = words.split_whitespace();
        let name = words.next().expect("a name").to_string();
        let number = self.names.len() as u64;
        let (mut prompt_len, mut like, mut eos, mut knows, mut keep) = (0, None, None, "", None);
        let mut request = Request {
            stop: StopRules { max_tokens: 1, min_tokens: 0, stop_token_ids: vec![EOS] },
            ..plans::request(number, [])
        };
        for (word, value) in words.map(|word| word.split_once('=').expect("name=value")) {
            let parsed = value.parse::<usize>();
            match (word, parsed) {
                ("prompt", Ok(tokens)) => prompt_len = tokens,
                ("output", Ok(tokens)) => request.stop.max_tokens = tokens,
                ("min", Ok(tokens)) => request.stop.min_tokens = tokens,
                ("keep", Ok(lease)) => keep = Some(Nanos(lease as u64)),
                ("eos", Ok(token)) => eos = Some(token),
                ("n", Ok(answers)) => request.num_answers = answers,
                ("priority", Ok(class)) => request.priority = Priority(class as i32),
                ("salt", Ok(salt)) => request.salt = salt as u64,
                ("cache", Err(_)) => request.use_prefix_cache = value == "on",
                ("like", Err(_)) => like = value.split_once(':'),
                ("knows", _) => knows = value,
                _ => panic!("no word {word}={value}"),
            }
        }
        let mut prompt: Vec<TokenId> = (0..prompt_len).map(|at| (number as u32 + 1) * 1000 + at as u32).collect();
        if let Some((other, len)) = like {
            let len: usize = len.parse().expect("a length");
            prompt[..len].copy_from_slice(&self.asked[other].0.prompt[..len]);
        }
        request.prompt = prompt.into();
        self.names.insert(request.id, name.clone());
        self.asked.insert(name, (request.clone(), eos));
        let id = request.id;
        match door {
            "resume" => {
                let generated = generated(&request, eos, knows);
                let generated: Vec<_> = generated.iter().map(Option::as_deref).collect();
                self.scheduler.resume(request, &generated, Nanos(0))
            }
            "expect" => self.scheduler.admit_remote(request),
            _ => self.scheduler.admit(request),
        }?;
        assert!(keep.is_none_or(|lease| self.scheduler.pin(id, lease)));
        Ok(())
    }

    /// The model: it generates tokens that never repeat, and the stop token when `eos=` says so.
    fn compute(&self, step: &Step) -> StepOutput {
        let mut output = StepOutput { step: step.id, ..StepOutput::default() };
        for rows in step.rows() {
            let seq = rows.seq;
            let seq_state = self.scheduler.sequence(seq).expect("it is planned");
            let (_, eos) = &self.asked[&self.names[&seq_state.request_id()]];
            if rows.drafts > 0 {
                let held = self.right[&seq].min(rows.drafts);
                for nth in seq_state.num_generated() + 1..=seq_state.num_generated() + 1 + held {
                    let is_eos = eos.is_some_and(|eos| nth >= eos);
                    output.rows.push(RowOutput { seq, token: if is_eos { EOS } else { 2_000_000 + nth as u32 } });
                }
                continue;
            }
            let token = |sample: usize| {
                said(seq_state.request(), *eos, seq_state.answer() + sample, seq_state.num_generated() + 1)
            };
            output.rows.extend((0..rows.samples).map(|sample| RowOutput { seq, token: token(sample) }));
        }
        output
    }

    fn describe(&self, step: &Step) -> String {
        let mut parts = Vec::new();
        let mut part = |verb: &str, items: Vec<String>| {
            if !items.is_empty() {
                parts.push(format!("{verb} {}", items.join(" ")));
            }
        };
        part("preempt", step.preempted.iter().map(|&seq| self.name(seq)).collect());
        let slot = |slot: TierSlot| format!("{}{}", if slot.tier == Tier::Host { 'h' } else { 'd' }, slot.index);
        part("save", step.saves.iter().map(|save| format!("{}>{}", save.block.0, slot(save.slot))).collect());
        part("spill", step.spills.iter().map(|spill| format!("{}>{}", slot(spill.host), slot(spill.disk))).collect());
        part("load", step.loads.iter().map(|load| format!("{}>{}", slot(load.slot), self.name(load.seq))).collect());
        part("copy", step.copies.iter().map(|copy| format!("{}>{}", copy.src.0, copy.dst.0)).collect());
        let drafts = |row: &Rows| if row.drafts > 0 { format!("+{}", row.drafts) } else { String::new() };
        part("decode", step.decode.iter().map(|row| self.name(row.seq) + &drafts(row)).collect());
        let chunks = step.prefill.iter().map(|chunk| {
            let seq = self.scheduler.sequence(chunk.seq).expect("it is planned");
            let (end, ends_here) = (chunk.start + chunk.len, chunk.start + chunk.len == seq.num_tokens());
            let samples = if ends_here && chunk.samples != 1 { format!("x{}", chunk.samples) } else { String::new() };
            assert!(ends_here || chunk.samples == 0, "nothing is sampled before the last known token");
            format!("{}[{}..{end}]{samples}", self.name(chunk.seq), chunk.start)
        });
        part("prefill", chunks.collect());
        if parts.is_empty() { "nothing".to_string() } else { parts.join(", ") }
    }

    fn name(&self, seq: SeqId) -> String {
        let seq = self.scheduler.sequence(seq).expect("it is known");
        if seq.num_generated() == 0 {
            return self.names[&seq.request_id()].clone();
        }
        self.answer_name(seq.request_id(), seq.answer())
    }

    fn answer_name(&self, request: RequestId, answer: usize) -> String {
        let name = &self.names[&request];
        if self.asked[name].0.num_answers == 1 { name.clone() } else { format!("{name}.{answer}") }
    }
}
