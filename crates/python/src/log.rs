//! The step log as plain values, one row of a table each.

use std::collections::BTreeMap;

use engine::ledger::Nanos;
use engine::{HandoffOutcome, Stats};
use pyo3::prelude::*;
use scheduler::{Blocked, RecordRow, StepRecord};

/// One forward pass: what Python makes a `StepRecord` of.
#[derive(IntoPyObject)]
pub(crate) struct StepEntry {
    step: u64,
    began_ms: f64,
    took_ms: f64,
    predicted_ms: f64,
    machine_ms: f64,
    prefill_rows: usize,
    prefill_requests: usize,
    decode_rows: usize,
    decode_requests: usize,
    draft_rows: usize,
    tokens: usize,
    cached_tokens: usize,
    recomputed_rows: usize,
    preempted: usize,
    waiting_requests: usize,
    waiting_tokens: usize,
    blocked: &'static str,
    used_blocks: usize,
    taken_blocks: usize,
    evicted_blocks: usize,
}

impl StepEntry {
    pub(crate) fn of(record: &StepRecord) -> StepEntry {
        let rows = |rows: &[RecordRow]| rows.iter().map(|row| row.len).sum();
        let all = || record.prefill.iter().chain(&record.decode);
        StepEntry {
            step: record.step.0,
            began_ms: ms(record.began_at),
            took_ms: ms(record.took()),
            // Without a prediction.
            predicted_ms: if record.predicted == Nanos(0) { f64::NAN } else { ms(record.predicted) },
            machine_ms: ms(record.stolen.during),
            prefill_rows: rows(&record.prefill),
            prefill_requests: record.prefill.len(),
            decode_rows: rows(&record.decode),
            decode_requests: record.decode.len(),
            draft_rows: all().map(|row| row.drafts).sum(),
            tokens: all().map(|row| row.samples).sum(),
            cached_tokens: all().map(|row| row.cached_tokens).sum(),
            recomputed_rows: record.recomputed_rows,
            preempted: record.preempted.len(),
            waiting_requests: record.waiting_requests,
            waiting_tokens: record.waiting_tokens,
            blocked: match record.blocked {
                None => "",
                Some(Blocked::Kv) => "kv",
                Some(Blocked::Seats) => "seats",
                Some(Blocked::Budget) => "budget",
            },
            used_blocks: record.used_blocks,
            taken_blocks: record.taken_blocks,
            evicted_blocks: record.evicted_blocks,
        }
    }
}

/// What one sequence had in a step: what Python makes a `StepRow` of.
#[derive(IntoPyObject)]
pub(crate) struct StepRowEntry {
    step: u64,
    request_id: String,
    answer: usize,
    phase: &'static str,
    start: usize,
    rows: usize,
    tokens: usize,
    drafts: usize,
    cached_tokens: usize,
}

impl StepRowEntry {
    pub(crate) fn of(record: &StepRecord) -> Vec<StepRowEntry> {
        let entry = |phase| {
            move |row: &RecordRow| StepRowEntry {
                step: record.step.0,
                request_id: row.request.0.to_string(),
                answer: row.answer,
                phase,
                start: row.start,
                rows: row.len,
                tokens: row.samples,
                drafts: row.drafts,
                cached_tokens: row.cached_tokens,
            }
        };
        record.decode.iter().map(entry("decode")).chain(record.prefill.iter().map(entry("prefill"))).collect()
    }
}

/// Times are in milliseconds, as in the answers of the server.
pub(crate) fn ms(nanos: Nanos) -> f64 {
    nanos.as_secs_f64() * 1e3
}

/// What an engine has to do, and what its cache was good for.
#[derive(IntoPyObject)]
pub(crate) struct Load {
    used_blocks: usize,
    total_blocks: usize,
    running_requests: usize,
    waiting_requests: usize,
    /// Of prompts, not computed yet.
    waiting_tokens: usize,
    /// Since the start: tokens of prompts, and of these those that were in the cache.
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Prompts for which other workers were asked, by how that went.
    handoffs_taken: BTreeMap<&'static str, u64>,
    /// Prompts that were read for others to their end.
    handoffs_given: u64,
    /// First tokens that two workers drew differently.
    handoff_mismatches: u64,
    /// Blocks that are kept for others now.
    kept_blocks: u64,
}

impl Load {
    pub(crate) fn of(stats: &Stats) -> Load {
        Load {
            used_blocks: stats.used_blocks,
            total_blocks: stats.total_blocks,
            running_requests: stats.running_requests,
            waiting_requests: stats.waiting_requests,
            waiting_tokens: stats.waiting_tokens,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            handoffs_taken: HandoffOutcome::ALL.iter().map(|way| way.name()).zip(stats.handoffs.taken).collect(),
            handoffs_given: stats.handoffs.given[0],
            handoff_mismatches: stats.handoffs.mismatches,
            kept_blocks: stats.handoffs.kept_blocks,
        }
    }
}
