//! What the tests of this crate share: committed checkpoints, batches by hand, and a way to run them.
pub(crate) mod adapters;
pub(crate) mod device;
pub(crate) mod gguf;

use checkpoint::{Checkpoint, LoadError, Source};
use kernels::threads::NodeChoice;
use kernels::{AccumulationOrder, Backend, Cpu, CpuOptions, Isa, KvDtype, WeightClass};
use model::{Batch, Forward, KvBudget, LoadOptions, Runner, Span, StateSave};
use std::ops::Range;
use std::path::PathBuf;
use testing::Dice;

/// Tokens in a cache block, everywhere in these tests.
pub(crate) const BLOCK: u32 = 32;

/// The directories of `tests/data` that hold a checkpoint, by name.
pub(crate) fn committed_checkpoints() -> Vec<(String, PathBuf)> {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
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

/// A committed checkpoint by name.
pub(crate) fn committed(name: &str) -> Checkpoint {
    let (_, path) = committed_checkpoints().into_iter().find(|(found, _)| found == name).expect("a committed case");
    Checkpoint::open(Source::Directory(path)).unwrap()
}

/// A built-in model: the same readers as for a directory, no file system.
pub(crate) fn embedded(files: Vec<(&str, Vec<u8>)>) -> Checkpoint {
    try_embedded(files).unwrap()
}

/// [`embedded`], its error kept. The bytes stay for the rest of the process: a test has few of them.
pub(crate) fn try_embedded(files: Vec<(&str, Vec<u8>)>) -> Result<Checkpoint, LoadError> {
    let leak = |(name, bytes): (&str, Vec<u8>)| -> (&'static str, &'static [u8]) {
        (Box::leak(name.to_string().into_boxed_str()), Box::leak(bytes.into_boxed_slice()))
    };
    let files: Vec<(&'static str, &'static [u8])> = files.into_iter().map(leak).collect();
    Checkpoint::open(Source::Embedded { name: "case", files: Box::leak(files.into_boxed_slice()) })
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
        adapters: model::AdapterRoom::default(),
        state_slots: STATE_SLOTS,
        expert_memory: None,
    }
}

/// Slots for states, where a model has them.
pub(crate) const STATE_SLOTS: usize = 8;

pub(crate) fn load<B: Backend>(backend: B, checkpoint: &Checkpoint, weights: WeightClass) -> Runner<B> {
    load_with_kv(backend, checkpoint, weights, KvDtype::Bf16)
}

/// The same with a choice of the cache's precision.
pub(crate) fn load_with_kv<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    weights: WeightClass,
    kv_dtype: KvDtype,
) -> Runner<B> {
    model::load(backend, checkpoint, &LoadOptions { kv_dtype, ..options(weights) }, &mut |_| {}).unwrap()
}

pub(crate) fn cpu(isa: Option<Isa>, threads: usize) -> Cpu {
    cpu_of(isa, threads, AccumulationOrder::best())
}

/// On memory nodes that there need not be.
pub(crate) fn cpu_on(nodes: usize, isa: Isa, threads: usize, arithmetic: AccumulationOrder) -> Cpu {
    let nodes = NodeChoice::Imagined(nodes);
    Cpu::new(CpuOptions { threads: Some(threads), isa: Some(isa), arithmetic: Some(arithmetic), nodes }).unwrap()
}

/// The same in an arithmetic.
pub(crate) fn cpu_of(isa: Option<Isa>, threads: usize, arithmetic: AccumulationOrder) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads), isa, arithmetic: Some(arithmetic), ..CpuOptions::default() }).unwrap()
}

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

/// One sequence from its first token in one pass, in the first blocks of the cache: the logits of all rows.
pub(crate) fn run_alone(model: &mut dyn Forward, tokens: &[u32]) -> Vec<Vec<f32>> {
    let table: Vec<u32> = (0..tokens.len().div_ceil(BLOCK as usize) as u32).collect();
    let mut batch = Batch::default();
    push(&mut batch, tokens, 0..tokens.len(), &table, Wanted::All);
    run_f32(model, &batch)
}

/// Token ids below `vocab_size` from a seed.
pub(crate) fn random_tokens(seed: u64, len: usize, vocab_size: usize) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    (0..len).map(|_| dice.roll(vocab_size) as u32).collect()
}
