//! A mixture of experts in place of the MLP (Shazeer et al., 2017): each row goes through a few of many small MLPs.
//!
//! ```text
//! rows              0      1      2                    router: bf16 in every weight class, then softmax and top k
//! chosen          [3,1]  [0,3]  [3,2]                  the backend chooses and groups; the host asks for the counts
//! grouped    expert 0: row 1 | 1: row 0 | 2: row 2 | 3: rows 0 1 2
//! per expert      gather its rows -> gate|up, down over them together -> times their weights -> added to their rows
//! ```
//! Experts are walked through by rising index, so a row sums its experts' results in that order, whatever else is in
//! the batch: its bits depend on itself alone. Experts without a row are not read.
//!
//! Some models have one expert more that every row passes through, in some times a gate of its own; it is added last.

use crate::config::ExpertConfig;
use crate::transformer::{Linear, Mlp, Pass};
use kernels::{Backend, Extent, Out, OutOfMemory};

/// The experts of a layer.
pub(crate) struct Experts<B: Backend> {
    /// `[num_experts, hidden_size]`.
    pub(crate) router: Linear<B>,
    /// `[num_experts]`: part of the choice, and of no weight.
    pub(crate) choice_bias: Option<B::Vector>,
    pub(crate) experts: Vec<Mlp<B>>,
    pub(crate) shared: Option<SharedExpert<B>>,
}

/// The expert of every row.
pub(crate) struct SharedExpert<B: Backend> {
    /// `[1, hidden_size]`.
    pub(crate) gate: Option<B::Matrix>,
    pub(crate) mlp: Mlp<B>,
}

/// Memory for routing the rows of a pass.
pub(crate) struct ExpertScratch<B: Backend> {
    /// `[max_rows, num_experts]`.
    logits: B::Rows,
    routes: B::Routes,
    /// An expert's rows of the input, and what it makes of them: `[max_rows, hidden_size]` each.
    gathered: B::Rows,
    results: B::Rows,
    /// `[max_rows, 1]`.
    shared_gates: B::Rows,
}

impl<B: Backend> ExpertScratch<B> {
    pub(crate) fn new(
        backend: &B,
        experts: &ExpertConfig,
        hidden: usize,
        max_rows: usize,
    ) -> Result<ExpertScratch<B>, OutOfMemory> {
        let &ExpertConfig { num_experts, rule, shared, .. } = experts;
        Ok(ExpertScratch {
            logits: backend.rows(max_rows, num_experts)?,
            routes: backend.routes(max_rows, num_experts, rule)?,
            gathered: backend.rows(max_rows, hidden)?,
            results: backend.rows(max_rows, hidden)?,
            shared_gates: backend.rows(max_rows, usize::from(shared.is_some_and(|shared| shared.gated)))?,
        })
    }
}

impl<B: Backend> Experts<B> {
    /// The first `rows` of `input`. `activated` is scratch, wide enough for an expert.
    pub(crate) fn apply(
        &self,
        pass: &Pass<'_, B>,
        (input, rows): (&B::Rows, usize),
        scratch: &mut ExpertScratch<B>,
        activated: &mut B::Rows,
        out: Out<'_, B::Rows>,
    ) {
        let &Pass { backend, config, .. } = pass;
        let ExpertScratch { logits, routes, gathered, results, shared_gates } = scratch;
        self.router.apply(backend, input, rows, Out::Store(logits));
        backend.route(logits, self.choice_bias.as_ref(), rows, routes);

        let hidden = config.hidden_size;
        let x = match out {
            Out::Add(x) => x,
            Out::Store(out) => {
                backend.clear(out, Extent { rows, width: hidden });
                out
            }
            Out::Gated(..) => unreachable!("experts end in the residual stream"),
        };
        for (index, expert) in self.experts.iter().enumerate() {
            let rows = backend.num_routed(routes, index);
            if rows > 0 {
                backend.gather_routed(routes, index, input, hidden, gathered);
                expert.apply(pass, (gathered, rows), activated, Out::Store(results));
                backend.scatter_routed(routes, index, results, hidden, x);
            }
        }
        match &self.shared {
            Some(SharedExpert { gate: Some(gate), mlp }) => {
                backend.linear(input, rows, gate, None, Out::Store(shared_gates));
                mlp.apply(pass, (input, rows), activated, Out::Store(results));
                backend.add_gated(shared_gates, results, x, Extent { rows, width: hidden });
            }
            Some(SharedExpert { gate: None, mlp }) => mlp.apply(pass, (input, rows), activated, Out::Add(x)),
            None => {}
        }
    }

    /// Bytes of what every row passes through.
    pub(crate) fn bytes_of_all(&self, backend: &B) -> usize {
        let gate = |gate: &Option<B::Matrix>| gate.as_ref().map_or(0, |gate| backend.matrix_bytes(gate));
        let shared = self.shared.as_ref().map_or(0, |shared| gate(&shared.gate) + shared.mlp.bytes(backend));
        let bias = self.choice_bias.as_ref().map_or(0, |bias| backend.vector_bytes(bias));
        self.router.bytes(backend) + bias + shared
    }

    /// Bytes of all experts but the shared one.
    pub(crate) fn expert_bytes(&self, backend: &B) -> usize {
        self.experts.iter().map(|expert| expert.bytes(backend)).sum()
    }
}
