//! What the tests of this crate share: committed checkpoints, batches by hand, and a way to run them.
pub(crate) mod adapters;
pub(crate) mod batches;
pub(crate) mod device;
pub(crate) mod gguf;

pub(crate) use batches::*;
use checkpoint::{Checkpoint, LoadError, Source};
use kernels::threads::NodeChoice;
use kernels::{AccumulationOrder, Backend, Cpu, CpuOptions, Isa, KvDtype, WeightClass};
use model::{Batch, Forward, LoadOptions, Runner};

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

/// One sequence from its first token in one pass, in the first blocks of the cache: the logits of all rows.
pub(crate) fn run_alone(model: &mut dyn Forward, tokens: &[u32]) -> Vec<Vec<f32>> {
    let table: Vec<u32> = (0..tokens.len().div_ceil(BLOCK as usize) as u32).collect();
    let mut batch = Batch::default();
    push(&mut batch, tokens, 0..tokens.len(), &table, Wanted::All);
    run_f32(model, &batch)
}
