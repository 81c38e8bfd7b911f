//! `twostroke bench --synthetic-loras N`: what adapters cost in decode, before there are any.
//!
//! ```text
//! none  adapters  none  adapters ..   -n steps of -B rows each, in turns (-r rounds); stream i goes through adapter i mod N
//! ```
//! Their numbers are random, for speed does not depend on them, and they adapt every projection that can be.

use std::sync::atomic::AtomicBool;

use figures::percentile;
use model::{Adapter, AdapterRoom, ModelConfig};
use serde_json::json;

use crate::commands::bench::{Subject, Test};
use crate::console::{Progress, put_line};
use crate::failure::Failure;
use crate::flags::BenchFlags;
use crate::models;

/// Runs the command.
pub(crate) fn loras(flags: &BenchFlags, adapters: usize) -> Result<(), Failure> {
    let checkpoint = models::open(flags.model.model.as_deref())?;
    let config = ModelConfig::load(&checkpoint).map_err(|error| models::load_failure(&checkpoint, &error))?;
    let rank = flags.lora_rank;
    let steps = flags.n_gen.first().copied().unwrap_or(0).max(1);
    let depth = flags.n_depth.first().copied().unwrap_or(0);
    let parallel = flags.parallel.first().copied().unwrap_or(1);
    let test = Test { n_prompt: 0, n_gen: steps, n_depth: depth, n_batch: parallel.max(depth.min(512)), parallel };
    let room = AdapterRoom { slots: adapters, max_rank: rank };
    let mut subject = Subject::load_with(&checkpoint, &flags.model, flags.isa, &[test], room)?;
    let made = Adapter::random(&config, rank, 1);
    for slot in 0..adapters {
        subject.set_adapter(slot, &made).map_err(|error| models::load_failure(&checkpoint, &error))?;
    }
    let bar = Progress::new("in turns");
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..flags.repetitions {
        bar.at(round as u64, flags.repetitions as u64);
        for (used, rates) in [0, adapters].into_iter().zip(&mut rates) {
            let seconds = subject.run_through(&test, used, 1, &AtomicBool::new(false));
            rates.extend(seconds.iter().map(|seconds| test.tokens() as f64 / seconds));
        }
    }
    drop(bar);
    let median = |rates: &[f64]| {
        let mut rates = rates.to_vec();
        rates.sort_by(f64::total_cmp);
        percentile(&rates, 50.0).unwrap_or(0.0)
    };
    let (none, through) = (median(&rates[0]), median(&rates[1]));
    put_line(&match flags.json {
        true => json!({
            "model": subject.model_type(),
            "streams": parallel,
            "adapters": adapters,
            "rank": rank,
            "none_tokens_per_second": rates[0],
            "adapters_tokens_per_second": rates[1],
            "share": through / none,
        })
        .to_string(),
        false => format!(
            "{}, {parallel} streams, {steps} steps, {} rounds in turns\n\
             none                    {none:>9.1} tokens/s\n\
             {adapters} of rank {rank:<13} {through:>9.1} tokens/s   {:.2} of that",
            subject.model_type(),
            flags.repetitions,
            through / none
        ),
    })
}
