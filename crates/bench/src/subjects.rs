//! What there is to measure beside whole engines and servers. A subject is a line here and a function: it times what it is
//! about, by [`Timing`](crate::timing::Timing), and adds rows.

mod attention;
mod draws;
mod goodput;
mod low_rank;
mod masks;
mod mixed;
mod nodes;
mod products;
mod regions;

use std::io::Write;

use kernels::threads::default_threads;
use kernels::{AccumulationOrder, Isa};
use launch::machine;
use serde_json::json;

use crate::llama;
use crate::rows::{RowForm, Rows, TIMED};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::apart;

/// Something to measure.
#[derive(Clone, Copy)]
pub struct BenchSubject {
    /// In a word.
    pub name: &'static str,
    /// In a line.
    pub about: &'static str,
    /// Columns of its rows in Markdown.
    header: &'static str,
    run: fn(&BenchSetup<'_>, &mut Rows<'_>) -> Result<(), BenchError>,
}

/// All subjects; the first is the default.
pub const SUBJECTS: [BenchSubject; 10] = [
    BenchSubject { name: "forward", about: FORWARD, header: llama::HEADER, run: llama::measure },
    BenchSubject { name: "mixed", about: MIXED, header: TIMED, run: mixed::measure },
    BenchSubject { name: "nodes", about: NODES, header: TIMED, run: nodes::measure },
    BenchSubject { name: "products", about: PRODUCTS, header: TIMED, run: products::measure },
    BenchSubject { name: "attention", about: ATTENTION, header: TIMED, run: attention::measure },
    BenchSubject { name: "low-rank", about: LOW_RANK, header: TIMED, run: low_rank::measure },
    BenchSubject { name: "regions", about: REGIONS, header: TIMED, run: regions::measure },
    BenchSubject { name: "draws", about: DRAWS, header: TIMED, run: draws::measure },
    BenchSubject { name: "masks", about: MASKS, header: TIMED, run: masks::measure },
    BenchSubject { name: "goodput", about: GOODPUT, header: goodput::HEADER, run: goodput::measure },
];

const FORWARD: &str = "The forward pass in the shapes of both phases: -p, -n, -d, -b, -B";
const MIXED: &str =
    "Steps of -B streams that decode, of a chunk of -p prompt tokens, and of both in one, behind -d tokens";
const NODES: &str = "The forward pass on one memory node and split over several, in turns";
const PRODUCTS: &str =
    "Matrix products in the shapes of models of 0.5B and 7B parameters, by class of weights and rows";
const ATTENTION: &str = "Attention of both phases over a cache far larger than the CPU's";
const LOW_RANK: &str = "The products of adapters of --lora-rank, for the projections of a model of 0.5B parameters";
const REGIONS: &str = "A fork and join of the threads that compute, beside the machine's own floor";
const DRAWS: &str = "Drawing a token from a vocabulary of 151,936";
const MASKS: &str = "The mask of a token under JSON schemas, and taking one, in walks of -n tokens";
const GOODPUT: &str = "Requests in time in the simulator, with targets beside every static chunk; it takes minutes";

impl BenchSubject {
    /// Measures it and writes rows as they come.
    pub fn measure(
        &self,
        setup: &BenchSetup<'_>,
        form: RowForm,
        out: &mut (dyn Write + Send),
    ) -> Result<(), BenchError> {
        let common = json!({
            "subject": self.name,
            "build_version": env!("CARGO_PKG_VERSION"),
            "cpu_info": machine::cpu_name(),
            "isa": setup.isa.unwrap_or_else(Isa::best).name(),
            "arithmetic": setup.model.arithmetic.unwrap_or_else(AccumulationOrder::best).name(),
            "n_threads": setup.model.threads.unwrap_or_else(default_threads),
        });
        let mut rows = Rows::new(form, self.header, common, out);
        // The thread that computes is pinned to a core, and the caller's is not to be.
        apart(|| (self.run)(setup, &mut rows))?;
        Ok(rows.end()?)
    }
}
