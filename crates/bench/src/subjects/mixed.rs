//! What a step costs that decodes and reads a prompt at once, beside its two halves as steps of their own.
//!
//! ```text
//! decode    -B sequences, one row each, logits of all
//! chunk     -p rows of another sequence, logits of the last
//! both      the same rows in one pass
//! ```
//! Every sequence has -d tokens in the cache before.

use std::ops::Range;

use model::{AdapterRoom, Batch, ModelConfig};

use crate::forward::{LoadedModel, PassRoom, add_rows, blocks};
use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let most = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
    let (streams, chunk, depth) = (most(setup.parallel), most(setup.n_prompt), most(setup.n_depth));
    let length = depth + chunk;
    let limit = ModelConfig::load(setup.checkpoint)?.context_limit;
    if chunk == 0 {
        return Err(BenchError::Usage("nothing to measure: -p is 0".into()));
    }
    if length > limit {
        return Err(BenchError::Usage(format!("-d and -p need {length} tokens; this model reads at most {limit}")));
    }
    // The last sequence is the one that never decodes.
    let all = streams + 1;
    let room = PassRoom { rows: streams + chunk, logit_rows: all, length, blocks: all * blocks(length) };
    let mut model = LoadedModel::with_room(setup, room, AdapterRoom::default())?;
    model.forward.set_compute_thread();
    let vocab_size = model.demands.shape.vocab;
    let add = |batch: &mut Batch, sequence: usize, positions: Range<usize>| {
        add_rows(batch, vocab_size, (sequence, blocks(length)), positions, None);
        batch.logit_rows.push(batch.num_rows() as u32 - 1);
    };
    fill(&mut model, &add, (depth, chunk, streams));
    for &context in setup.n_depth {
        for &decoding in setup.parallel {
            for &chunk in setup.n_prompt.iter().filter(|&&chunk| chunk > 0) {
                let mut steps = [Batch::default(), Batch::default(), Batch::default()];
                for (step, (decodes, reads)) in steps.iter_mut().zip([(true, false), (false, true), (true, true)]) {
                    let sequences = if decodes { 0..decoding } else { 0..0 };
                    sequences.for_each(|sequence| add(step, sequence, context..context + 1));
                    if reads {
                        add(step, streams, context..context + chunk);
                    }
                }
                let [decode, read, both] = Timing::of_calls(setup.repetitions).in_turns(|way| model.pass(&steps[way]));
                let sum: Vec<f64> = decode.iter().zip(&read).map(|(decode, read)| decode + read).collect();
                let (alone, prompt) = (format!("tg1 x{decoding}"), format!("pp{chunk}"));
                rows.timed(format!("{alone} @ d{context}"), &decode, Against::Nothing)?;
                rows.timed(format!("{prompt} @ d{context}"), &read, Against::Nothing)?;
                rows.timed(format!("{alone} + {prompt} @ d{context}"), &both, Against::Other("their sum", &sum))?;
            }
        }
    }
    Ok(())
}

/// Reads the longest context into the first sequence, a chunk at a time, and copies it to the others.
fn fill(
    model: &mut LoadedModel,
    add: &dyn Fn(&mut Batch, usize, Range<usize>),
    (depth, chunk, others): (usize, usize, usize),
) {
    for start in (0..depth).step_by(chunk) {
        let mut batch = Batch::default();
        add(&mut batch, 0, start..depth.min(start + chunk));
        batch.logit_rows.clear();
        model.pass(&batch);
    }
    let each = blocks(depth + chunk);
    let pairs = (each..each * (others + 1)).map(|block| ((block % each) as u32, block as u32));
    model.forward.copy_blocks(&pairs.collect::<Vec<_>>());
}
