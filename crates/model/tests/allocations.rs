//! A steady step allocates nothing, whatever the model is made of: all memory is taken at load.

mod common;

use allocation_counter::measure;
use common::*;
use kernels::WeightClass;
use model::{Batch, Forward};

#[test]
fn a_steady_step_allocates_nothing() {
    for checkpoint in ["llama3", "gemma2", "gemma3", "granite", "olmo2", "phi3", "mixtral", "qwen3-moe"] {
        for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
            let mut model = load(cpu(None, 1), &committed(checkpoint), class);
            let vocab_size = model.config().vocab_size;
            let tables: Vec<Vec<u32>> = (0..4).map(|sequence| (sequence * 8..sequence * 8 + 8).collect()).collect();
            let prompts: Vec<Vec<u32>> = (0..4).map(|seed| random_tokens(seed, 200, vocab_size)).collect();
            // Three sequences decode while the fourth brings a chunk.
            let batches: Vec<Batch> = (0..5)
                .map(|step| {
                    let mut batch = Batch::default();
                    for sequence in 0..3 {
                        let at = 100 + step;
                        push(&mut batch, &prompts[sequence], at..at + 1, &tables[sequence], Wanted::All);
                    }
                    push(&mut batch, &prompts[3], step * 30..step * 30 + 30, &tables[3], Wanted::Last);
                    batch
                })
                .collect();
            let mut logits = vec![0.0; 4 * vocab_size];
            // The first steps size what grows to the largest step.
            for batch in &batches[..2] {
                model.forward(batch, &mut logits);
            }
            let allocations = measure(|| batches[2..].iter().for_each(|batch| model.forward(batch, &mut logits)));
            assert_eq!(allocations.count_total, 0, "{checkpoint} {class:?}");
        }
    }
}
