//! `twostroke bench --synthetic-loras N`: what adapters cost in decode, before there are any.
//!
//! ```text
//! none  adapters  none  adapters ..   -n steps of -B rows each, in turns (-r rounds); stream i goes through adapter i mod N
//! ```
//! Their numbers are random, for speed does not depend on them, and they adapt every projection that can be.

use model::{Adapter, AdapterRoom};
use serde_json::json;

use crate::forward::{ForwardTest, LoadedModel, PassRoom};
use crate::setup::{BenchError, BenchReport, BenchSetup};
use crate::timing::{Timing, middle};

/// The first of each of the setup's lengths, through `adapters` adapters and none.
pub fn measure(setup: &BenchSetup<'_>, adapters: usize) -> Result<BenchReport, BenchError> {
    let first = |list: &[usize]| list.first().copied().unwrap_or(0);
    let (rank, n_gen, n_depth) = (setup.lora_rank, first(setup.n_gen).max(1), first(setup.n_depth));
    let parallel = first(setup.parallel).max(1);
    let test = ForwardTest { n_prompt: 0, n_gen, n_depth, n_batch: parallel.max(n_depth.min(512)), parallel };
    let room = AdapterRoom { slots: adapters, max_rank: rank };
    let mut model = LoadedModel::with_room(setup, PassRoom::of(&[test]), room)?;
    let made = Adapter::random(model.forward.config(), rank, 1);
    (0..adapters).try_for_each(|slot| model.forward.set_adapter(slot, Some(&made)))?;
    let samples = model.run_through(&test, [0, adapters], &Timing::of_calls(setup.repetitions));
    let rates = samples.map(|s| s.iter().map(|seconds| test.tokens() as f64 / seconds).collect::<Vec<_>>());
    let [none, through] = [&rates[0], &rates[1]].map(|rates| middle(rates));
    let json = json!({
        "model": model.model_type(),
        "streams": parallel,
        "adapters": adapters,
        "rank": rank,
        "none_tokens_per_second": rates[0],
        "adapters_tokens_per_second": rates[1],
        "share": through / none,
    });
    let text = format!(
        "{}, {parallel} streams, {n_gen} steps, {} rounds in turns\n\
         none                    {none:>9.1} tokens/s\n\
         {adapters} of rank {rank:<13} {through:>9.1} tokens/s   {:.2} of that",
        model.model_type(),
        setup.repetitions,
        through / none
    );
    Ok(BenchReport { json, text })
}
