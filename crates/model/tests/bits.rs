//! The bits of every committed checkpoint's logits, as digests in `data/bits.tsv`: one line per checkpoint, precision of
//! its weights and order of sums.

use crate::common;

use checkpoint::{Checkpoint, Source};
use common::{committed_checkpoints, cpu_of, options, run_alone};
use kernels::{AccumulationOrder, Isa, WeightClass};
use model::Forward;
use sha2::{Digest, Sha256};
use testing::Golden;

#[test]
fn every_committed_checkpoint_gives_the_bits_that_are_committed() {
    let mut golden = Golden::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bits.tsv"));
    for (at, (name, directory)) in committed_checkpoints().into_iter().enumerate() {
        let checkpoint = Checkpoint::open(Source::Directory(directory)).unwrap();
        for weights in testing::one_of([WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4], at) {
            for arithmetic in testing::one_of(AccumulationOrder::ALL, at) {
                let what = format!("{name} {weights:?} {}", arithmetic.name());
                // Each instruction set in turn: the bits are those of all.
                let isas = Isa::available();
                let cpu = cpu_of(Some(isas[at % isas.len()]), 1, arithmetic);
                let mut model = model::load(cpu, &checkpoint, &options(weights), &mut |_| {}).unwrap();
                golden.computed(&what, "the processor", digest(&mut model));
            }
        }
    }
    golden.close(testing::is_long());
}

/// Of the logits of 70 tokens, more than two blocks.
fn digest(model: &mut dyn Forward) -> String {
    let vocab_size = model.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..70).map(|at| (at * 31 + 7) % vocab_size).collect();
    let mut hasher = Sha256::new();
    for logit in run_alone(model, &tokens).iter().flatten() {
        hasher.update(logit.to_bits().to_le_bytes());
    }
    hasher.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
