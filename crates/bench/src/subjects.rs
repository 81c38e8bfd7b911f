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
use kernels::{Arithmetic, Isa};
use launch::machine;
use serde_json::json;

use crate::llama;
use crate::rows::{RowForm, Rows, TIMED};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::apart;

/// Something to measure.
pub struct BenchSubject {
    /// In a word.
    pub name: &'static str,
    /// In a line.
    pub about: &'static str,
    header: &'static str,
    run: fn(&BenchSetup<'_>, &mut Rows<'_>) -> Result<(), BenchError>,
}

/// The forward pass: what is measured where nobody names anything.
pub const FORWARD: BenchSubject = BenchSubject {
    name: "forward",
    about: "The forward pass in the shapes of both phases: -p, -n, -d, -b, -B",
    header: llama::HEADER,
    run: llama::measure,
};

/// All that can be named.
pub const SUBJECTS: [BenchSubject; 10] = [
    FORWARD,
    timed(
        "mixed",
        "-B streams that decode, a chunk of -p prompt tokens, and both in one pass, behind -d tokens",
        mixed::measure,
    ),
    timed("nodes", "The forward pass on one memory node and split over several, in turns", nodes::measure),
    timed(
        "products",
        "Matrix products in the shapes of a model of 0.5B parameters, by class of weights and rows",
        products::measure,
    ),
    timed("attention", "Attention over a cache far larger than the CPU's, of both phases", attention::measure),
    timed(
        "low-rank",
        "The products of adapters of --lora-rank, for the projections of such a model",
        low_rank::measure,
    ),
    timed("regions", "A fork and join of the threads that compute, beside the machine's own floor", regions::measure),
    timed("draws", "Drawing a token from 151,936", draws::measure),
    timed("masks", "The mask of a token and taking it, under JSON schemas, in walks of -n tokens", masks::measure),
    BenchSubject {
        name: "goodput",
        about: "Requests in time in the simulator, with targets beside every static chunk; minutes",
        header: goodput::HEADER,
        run: goodput::measure,
    },
];

/// One whose rows are times.
const fn timed(
    name: &'static str,
    about: &'static str,
    run: fn(&BenchSetup<'_>, &mut Rows<'_>) -> Result<(), BenchError>,
) -> BenchSubject {
    BenchSubject { name, about, header: TIMED, run }
}

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
            "arithmetic": setup.model.arithmetic.unwrap_or_else(Arithmetic::best).name(),
            "n_threads": setup.model.threads.unwrap_or_else(default_threads),
        });
        let mut rows = Rows::new(form, self.header, common, out)?;
        // The thread that computes is pinned to a core, and the caller's is not to be.
        apart(|| (self.run)(setup, &mut rows))?;
        Ok(rows.end()?)
    }
}
