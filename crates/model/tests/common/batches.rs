//! Committed checkpoints, batches by hand, and passes of them: for the tests of a device too.
#![allow(dead_code, reason = "each crate's tests use their own part")]

use kernels::{KvDtype, WeightClass};
use model::{AdapterRoom, Batch, Forward, KvBudget, LoadOptions, Span};
use std::ops::Range;
use std::path::PathBuf;
use testing::Dice;

/// Tokens in a cache block, everywhere in these tests.
pub(crate) const BLOCK: u32 = 32;

/// The directories of `tests/data` that hold a checkpoint, by name.
pub(crate) fn committed_checkpoints() -> Vec<(String, PathBuf)> {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data");
    let mut found: Vec<(String, PathBuf)> = data
        .read_dir()
        .expect("tests/data is committed")
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("oracle.json").exists())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .collect();
    found.sort();
    found
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
