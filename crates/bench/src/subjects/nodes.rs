//! What it costs, or brings, to split a model over memory nodes: the same passes on one node and on several, in turns.
//!
//! On a machine with one memory node two are imagined in its memory: what the split itself costs. On one with several
//! these are compared with the same threads and memory placed by the system.

use kernels::limits::measure_nodes;
use kernels::threads::{NodeChoice, default_threads, num_nodes};
use launch::ModelSettings;
use plan::units::bandwidth;

use crate::forward::{LoadedModel, Passes};
use crate::llama;
use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let tests = llama::tests(setup)?;
    let found = num_nodes(NodeChoice::AsFound, setup.model.threads.unwrap_or_else(default_threads));
    let split = if found > 1 { NodeChoice::AsFound } else { NodeChoice::Imagined(2) };
    let on = |nodes| ModelSettings { nodes, ..setup.model.clone() };
    let [one, many] = [on(NodeChoice::One), on(split)];
    if found == 1 {
        (setup.note)("this machine has one memory node: what two bring is not measured, only what the split costs");
    }
    if let Some(limits) = measure_nodes(BenchSetup { model: &many, ..*setup }.cpu()?.pool(), 1.0)? {
        let rates: Vec<String> = limits.alone.iter().map(|&rate| bandwidth(rate)).collect();
        let neighbour = bandwidth(limits.neighbour);
        (setup.note)(&format!("nodes read {} from their own memory, {neighbour} from a neighbour's", rates.join(", ")));
    }
    let load = |model| LoadedModel::load(&BenchSetup { model, ..*setup }, &tests);
    let (mut one, mut many) = (load(&one)?, load(&many)?);
    let timing = Timing::of_calls(setup.repetitions);
    for test in &tests {
        let mut passes = [Passes::new(&mut one, test, timing.stop), Passes::new(&mut many, test, timing.stop)];
        let [alone, split] = timing.in_turns(|way| passes[way].once());
        rows.timed(format!("{}, one node", test.name()), &alone, Against::Nothing)?;
        rows.timed(format!("{}, split", test.name()), &split, Against::Other("one node", &alone))?;
    }
    Ok(())
}
