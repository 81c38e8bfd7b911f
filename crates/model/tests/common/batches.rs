//! Committed checkpoints, batches by hand, and passes of them: for the tests of a device too.
#![allow(dead_code, reason = "each crate's tests use their own part")]

use checkpoint::{Checkpoint, Source};
use kernels::{KvDtype, WeightClass};
use model::{AdapterRoom, Batch, Forward, KvBudget, LoadOptions, Span, StateSave};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use testing::Dice;

/// Tokens in a cache block, everywhere in these tests.
pub(crate) const BLOCK: u32 = 32;

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data")
}

/// The directories of `tests/data` that hold a checkpoint, by name.
pub(crate) fn committed_checkpoints() -> Vec<(String, PathBuf)> {
    let all = data().read_dir().expect("tests/data is committed").map(|entry| entry.unwrap().path());
    let mut found: Vec<(String, PathBuf)> = all
        .filter(|path| path.join("oracle.json").exists())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .collect();
    found.sort();
    found
}

/// A committed checkpoint by name.
pub(crate) fn committed(name: &str) -> Checkpoint {
    Checkpoint::open(Source::Directory(data().join(name))).expect("it is committed")
}

/// Room for 512 rows, logits of all of them, and 64 blocks.
pub(crate) fn options(weights: WeightClass) -> LoadOptions {
    LoadOptions {
        weights,
        as_stored: false,
        max_rows: 512,
        max_logit_rows: 512,
        max_model_len: None,
        kv_blocks: KvBudget::Blocks(64),
        block_size: BLOCK as usize,
        image_directory: None,
        kv_dtype: KvDtype::Bf16,
        adapters: AdapterRoom::default(),
        state_slots: STATE_SLOTS,
        expert_memory: None,
    }
}

/// Slots for states, where a model has them.
pub(crate) const STATE_SLOTS: usize = 8;

/// Appends rows of one sequence to a batch: `tokens[rows]`, the blocks of `table`, logits of all rows or of the last.
pub(crate) fn push(batch: &mut Batch, tokens: &[u32], rows: Range<usize>, table: &[u32], wanted: Wanted) {
    let first_row = batch.token_ids.len() as u32;
    let first_entry = batch.block_tables.len() as u32;
    for position in rows.clone() {
        batch.token_ids.push(tokens[position]);
        batch.positions.push(position as u32);
        batch.slots.push(table[position / BLOCK as usize] * BLOCK + position as u32 % BLOCK);
    }
    batch.block_tables.extend(table);
    let num_rows = rows.len() as u32;
    let table = first_entry..batch.block_tables.len() as u32;
    batch.spans.push(Span {
        first_row,
        num_rows,
        start: rows.start as u32,
        table,
        adapter: None,
        state: None,
        saves: 0..0,
    });
    let first_wanted = match wanted {
        Wanted::All => first_row,
        Wanted::Last => first_row + num_rows - 1,
        Wanted::None => first_row + num_rows,
    };
    batch.logit_rows.extend(first_wanted..first_row + num_rows);
}

/// The same of a model with states: the last span of the batch reads `state` and leaves its states after these
/// positions in these slots.
pub(crate) fn leave(batch: &mut Batch, state: Option<u32>, after: &[(usize, u32)]) {
    let span = batch.spans.last_mut().expect("a span was pushed");
    let row = |position: usize| span.first_row + (position as u32 - span.start);
    span.state = state;
    span.saves.start = batch.saves.len() as u32;
    batch.saves.extend(after.iter().map(|&(position, slot)| StateSave { row: row(position), slot }));
    span.saves.end = batch.saves.len() as u32;
}

/// The same if the model has states.
pub(crate) fn leave_where_kept(batch: &mut Batch, model: &dyn Forward, state: Option<u32>, after: &[(usize, u32)]) {
    if model.state_bytes() > 0 {
        leave(batch, state, after);
    }
}

/// Which rows of a span have logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    Last,
    None,
}

/// One pass; the logits row by row, as bits.
pub(crate) fn run(model: &mut dyn Forward, batch: &Batch) -> Vec<Vec<u32>> {
    run_f32(model, batch).iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// One pass; the logits row by row.
pub(crate) fn run_f32(model: &mut dyn Forward, batch: &Batch) -> Vec<Vec<f32>> {
    let vocab_size = model.config().vocab_size;
    let mut logits = vec![f32::NAN; batch.logit_rows.len() * vocab_size];
    model.forward(batch, &mut logits).unwrap();
    logits.chunks_exact(vocab_size).map(<[f32]>::to_vec).collect()
}

/// Token ids below `vocab_size` from a seed.
pub(crate) fn random_tokens(seed: u64, len: usize, vocab_size: usize) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    (0..len).map(|_| dice.roll(vocab_size) as u32).collect()
}

/// Passes of every kind: a chunk of `first` tokens without logits, chunks of two sequences together, decode rows behind a
/// copy of blocks and after a block came from elsewhere. The logits, as bits, and the bytes of some blocks.
pub(crate) fn passes(model: &mut dyn Forward, first: usize) -> (Vec<Vec<u32>>, Vec<Vec<u8>>) {
    let vocab_size = model.config().vocab_size;
    let [a, b] = [1, 2].map(|seed| random_tokens(seed, first + 50, vocab_size));
    let (mut table_a, table_b) = ([5, 3, 9, 4, 8, 10, 13, 14, 15, 16], [1, 7, 2]);
    let (mut all, mut batch, next) = (Vec::new(), Batch::default(), first + 21);
    push(&mut batch, &a, 0..first, &table_a, Wanted::None);
    leave_where_kept(&mut batch, model, None, &[(20, 7), (first - 1, 0)]);
    all.extend(run(model, &batch));
    batch.clear();
    push(&mut batch, &b, 0..33, &table_b, Wanted::All);
    leave_where_kept(&mut batch, model, None, &[(32, 4)]);
    push(&mut batch, &a, first..next, &table_a, Wanted::All);
    leave_where_kept(&mut batch, model, Some(0), &[(next - 1, 1)]);
    all.extend(run(model, &batch));

    let last = &mut table_a[next / BLOCK as usize];
    model.copy_blocks(&[(std::mem::replace(last, 11), 11), (7, 12)]);
    let mut buffer = model.host_buffer(vec![0; model.block_bytes()]);
    let block = Arc::get_mut(&mut buffer).unwrap();
    model.save_block(1, block);
    model.load_block(block, 20);
    if model.state_bytes() > 0 {
        let mut buffer = model.host_buffer(vec![0; model.state_bytes()]);
        let state = Arc::get_mut(&mut buffer).unwrap();
        model.save_state(1, state);
        model.load_state(state, 2);
    }
    batch.clear();
    push(&mut batch, &a, next..next + 1, &table_a, Wanted::Last);
    leave_where_kept(&mut batch, model, Some(2), &[]);
    push(&mut batch, &b, 33..34, &[20, 12, 2], Wanted::Last);
    leave_where_kept(&mut batch, model, Some(4), &[(33, 5)]);
    all.extend(run(model, &batch));
    let saved = [20, 12, 11, 5].map(|block| {
        let mut buffer = model.host_buffer(vec![0; model.block_bytes()]);
        model.save_block(block, Arc::get_mut(&mut buffer).unwrap());
        model.submit().unwrap();
        buffer.bytes().unwrap().to_vec()
    });
    (all, saved.to_vec())
}
