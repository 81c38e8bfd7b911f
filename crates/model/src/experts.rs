//! A mixture of experts in place of the MLP (Shazeer et al., 2017): each row goes through a few of many small MLPs.
//!
//! ```text
//! rows              0      1      2                    router: bf16 in every weight class, then softmax and top k
//! chosen          [3,1]  [0,3]  [3,2]                  the backend chooses and groups; the host asks for the counts
//! grouped    expert 0: row 1 | 1: row 0 | 2: row 2 | 3: rows 0 1 2
//! per expert      gather its rows -> gate|up, down over them together -> times their weights -> added to their rows
//! ```
//! Experts are walked through by rising index, so a row sums its experts' results in that order, whatever else is in
//! the batch: its bits depend on itself alone. Experts without a row are not read. A device may take all together: it
//! adds in the same order.
//!
//! Some models have one expert more that every row passes through, in some times a gate of its own; it is added last.

use crate::config::ExpertConfig;
use crate::expert_cache::{ExpertCache, ExpertMemory, ReadCounts};
use crate::tensors;
use crate::transformer::{Linear, Loader, Mlp, Pass, copy};
use checkpoint::LoadError;
use checkpoint::weights::Weights;
use kernels::{Backend, Extent, Out, OutOfMemory, RoutedMlp, WeightClass};
use std::sync::Arc;

/// The experts of a layer.
pub(crate) struct Experts<B: Backend> {
    /// `[num_experts, hidden_size]`.
    pub(crate) router: Linear<B>,
    /// `[num_experts]`: part of the choice, and of no weight.
    pub(crate) choice_bias: Option<B::Vector>,
    pub(crate) experts: ExpertSet<B>,
    pub(crate) shared: Option<SharedExpert<B>>,
    /// Products before and behind the experts, which work on fewer numbers; the router and the shared one do not.
    pub(crate) latent: Option<[Linear<B>; 2]>,
    /// Of each expert's results; empty: all 1.
    pub(crate) factors: Vec<f32>,
    pub(crate) beside: Option<BesideMlp<B>>,
}

/// The experts among which the router chooses.
pub(crate) enum ExpertSet<B: Backend> {
    /// All in memory.
    All(Vec<Mlp<B>>),
    /// Some, and the others are read.
    Cached {
        reader: Arc<ExpertReader>,
        experts: Vec<tensors::Mlp>,
        cache: ExpertCache<Mlp<B>>,
        /// Bytes of each.
        bytes: usize,
    },
}

impl<B: Backend> ExpertSet<B> {
    /// With the first ones, until the memory is full.
    pub(crate) fn cached(
        loader: &mut Loader<'_, B>,
        reader: Arc<ExpertReader>,
        experts: &[tensors::Mlp],
    ) -> Result<ExpertSet<B>, LoadError> {
        let share = reader.memory.bytes / reader.num_layers.max(1) as u64;
        let mut held: Vec<Option<Mlp<B>>> = Vec::with_capacity(experts.len());
        let (mut room, mut bytes) = (1, 0);
        for (index, expert) in experts.iter().enumerate() {
            // The first one tells how many there is room for.
            let expert = if index < room || reader.pack_all { Some(loader.mlp(expert)?) } else { None };
            if let Some(expert) = expert.as_ref().filter(|_| index == 0) {
                bytes = expert.bytes(loader.backend);
                room = (share / bytes.max(1) as u64) as usize;
            }
            held.push(expert.filter(|_| index < room));
        }
        Ok(ExpertSet::Cached { reader, experts: experts.to_vec(), cache: ExpertCache::new(room, held), bytes })
    }

    /// Calls `work` for each that is `needed`, by rising index.
    ///
    /// Panics if one cannot be read: its file was written to, or its disk is broken.
    fn each(&self, pass: &Pass<'_, B>, needed: impl Fn(usize) -> bool, mut work: impl FnMut(usize, &Mlp<B>)) {
        match self {
            ExpertSet::All(experts) => {
                experts
                    .iter()
                    .enumerate()
                    .filter(|&(index, _)| needed(index))
                    .for_each(|(index, mlp)| work(index, mlp));
            }
            ExpertSet::Cached { reader, experts, cache, .. } => {
                // A lost device is reported where the pass is submitted.
                let read = |index: usize| match reader.read(pass, &experts[index]) {
                    Ok(expert) => Some(expert),
                    Err(_) if pass.backend.submit().is_err() => None,
                    Err(error) => panic!("an expert cannot be read: {error}"),
                };
                cache.each(needed, read, || _ = pass.backend.wait(), work);
            }
        }
    }

    /// Those in memory.
    pub(crate) fn held_mut(&mut self) -> Vec<&mut Mlp<B>> {
        match self {
            ExpertSet::All(experts) => experts.iter_mut().collect(),
            ExpertSet::Cached { cache, .. } => cache.held_mut(),
        }
    }

    /// Bytes of all, and of those in memory.
    pub(crate) fn bytes(&self, backend: &B) -> [usize; 2] {
        match self {
            ExpertSet::All(experts) => [experts.iter().map(|expert| expert.bytes(backend)).sum(); 2],
            ExpertSet::Cached { cache, bytes, .. } => cache.counts().map(|experts| experts * bytes),
        }
    }
}

/// What reads experts while the model computes.
pub(crate) struct ExpertReader {
    pub(crate) weights: Arc<Weights>,
    pub(crate) class: WeightClass,
    pub(crate) as_stored: bool,
    pub(crate) memory: ExpertMemory,
    /// Layers that have experts.
    pub(crate) num_layers: usize,
    /// Whether all have to be packed once at the start.
    pub(crate) pack_all: bool,
    pub(crate) counts: ReadCounts,
}

impl ExpertReader {
    fn read<B: Backend>(&self, pass: &Pass<'_, B>, expert: &tensors::Mlp) -> Result<Mlp<B>, LoadError> {
        let &ExpertReader { class, as_stored, memory: ExpertMemory { now, .. }, .. } = self;
        let &Pass { backend, config, .. } = pass;
        let began = now();
        let (names, progress, weights) = (Vec::new(), &mut |_| {}, &*self.weights);
        let expert =
            Loader { backend, config, weights, class, as_stored, names, progress, expert_reader: None }.mlp(expert)?;
        self.counts.add(expert.bytes(backend), now().saturating_sub(began));
        Ok(expert)
    }
}

/// An MLP that experts are beside: `norm(mlp(input)) + norm(experts(norm(x)))` in place of either, chosen by another
/// norm of `x`, the residual stream.
pub(crate) struct BesideMlp<B: Backend> {
    pub(crate) mlp: Mlp<B>,
    /// Of what the MLP gives.
    pub(crate) mlp_norm: B::Vector,
    /// Of what experts read and give.
    pub(crate) norms: [B::Vector; 2],
    /// Of what the router reads.
    pub(crate) router_norm: B::Vector,
}

impl<B: Backend> BesideMlp<B> {
    fn bytes(&self, backend: &B) -> usize {
        let BesideMlp { mlp, mlp_norm, norms: [before, after], router_norm } = self;
        let norms = [mlp_norm, before, after, router_norm].map(|norm| backend.vector_bytes(norm));
        mlp.bytes(backend) + norms.iter().sum::<usize>()
    }
}

/// The expert of every row.
pub(crate) struct SharedExpert<B: Backend> {
    /// `[1, hidden_size]`.
    pub(crate) gate: Option<B::Matrix>,
    pub(crate) mlp: Mlp<B>,
}

/// Memory for routing the rows of a pass.
pub(crate) struct ExpertScratch<B: Backend> {
    routing: RoutingScratch<B>,
    /// What an MLP beside them gives, and a norm of the stream: `[max_rows, hidden_size]` each, or empty.
    beside: [B::Rows; 2],
}

struct RoutingScratch<B: Backend> {
    /// `[max_rows, num_experts]`.
    logits: B::Rows,
    routes: B::Routes,
    /// An expert's rows of the input, and what it makes of them: `[max_rows, hidden_size]` each, or wider where they
    /// are of another width.
    gathered: B::Rows,
    results: B::Rows,
    /// `[max_rows, 1]`.
    shared_gates: B::Rows,
    /// What experts read and give where that has another width, `[max_rows, latent]` each; or empty.
    latent: [B::Rows; 2],
}

impl<B: Backend> ExpertScratch<B> {
    pub(crate) fn new(
        backend: &B,
        experts: &ExpertConfig,
        hidden: usize,
        max_rows: usize,
    ) -> Result<ExpertScratch<B>, OutOfMemory> {
        let &ExpertConfig { num_experts, rule, shared, latent, beside_mlp, .. } = experts;
        let latent = latent.unwrap_or(0);
        let beside = if beside_mlp { hidden } else { 0 };
        let routing = RoutingScratch {
            logits: backend.rows(max_rows, num_experts)?,
            routes: backend.routes(max_rows, num_experts, rule)?,
            gathered: backend.rows(max_rows, hidden.max(latent))?,
            results: backend.rows(max_rows, hidden.max(latent))?,
            shared_gates: backend.rows(max_rows, usize::from(shared.is_some_and(|shared| shared.gated)))?,
            latent: [backend.rows(max_rows, latent)?, backend.rows(max_rows, latent)?],
        };
        Ok(ExpertScratch { routing, beside: [backend.rows(max_rows, beside)?, backend.rows(max_rows, beside)?] })
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
        self.score(pass, (input, rows), &mut scratch.routing);
        self.add_chosen(pass, (input, rows), &mut scratch.routing, activated, out);
    }

    /// The same beside an MLP, which alone reads `input`; `x` is the stream.
    pub(crate) fn apply_beside(
        &self,
        pass: &Pass<'_, B>,
        (input, x, rows): (&B::Rows, &B::Rows, usize),
        scratch: &mut ExpertScratch<B>,
        activated: &mut B::Rows,
        out: &mut B::Rows,
    ) {
        let Some(BesideMlp { mlp, mlp_norm, norms: [before, after], router_norm }) = &self.beside else { return };
        let &Pass { backend, config, .. } = pass;
        let eps = config.rms_norm_eps;
        let ExpertScratch { routing, beside: [of_mlp, normed] } = scratch;
        mlp.apply(pass, (input, rows), activated, Out::Store(out));
        backend.rms_norm(out, 0..rows, mlp_norm, eps, of_mlp);
        backend.rms_norm(x, 0..rows, router_norm, eps, normed);
        self.score(pass, (normed, rows), routing);
        backend.rms_norm(x, 0..rows, before, eps, normed);
        self.add_chosen(pass, (normed, rows), routing, activated, Out::Store(out));
        backend.rms_norm(out, 0..rows, after, eps, normed);
        let extent = Extent { rows, width: config.hidden_size };
        copy(backend, of_mlp, out, extent);
        backend.add_scaled(normed, 1.0, out, extent);
    }

    fn score(&self, pass: &Pass<'_, B>, (input, rows): (&B::Rows, usize), scratch: &mut RoutingScratch<B>) {
        self.router.apply(pass.backend, input, rows, Out::Store(&mut scratch.logits));
    }

    /// What the chosen experts, and the one of every row, make of `input`.
    fn add_chosen(
        &self,
        pass: &Pass<'_, B>,
        (input, rows): (&B::Rows, usize),
        scratch: &mut RoutingScratch<B>,
        activated: &mut B::Rows,
        out: Out<'_, B::Rows>,
    ) {
        let &Pass { backend, config, .. } = pass;
        let RoutingScratch { logits, routes, gathered, results, shared_gates, latent: [within, sums] } = scratch;
        let hidden = config.hidden_size;
        let x = match out {
            Out::Add(x) => x,
            Out::Store(out) => {
                backend.clear(out, Extent { rows, width: hidden });
                out
            }
            Out::StoreAt { .. } | Out::Gated(..) => unreachable!("experts end in the residual stream"),
        };
        let width = config.experts.and_then(|experts| experts.latent).unwrap_or(hidden);
        let (from, to) = match &self.latent {
            None => (input, &mut *x),
            Some([before, _]) => {
                before.apply(backend, input, rows, Out::Store(within));
                backend.clear(sums, Extent { rows, width });
                (&*within, &mut *sums)
            }
        };
        let bias = self.choice_bias.as_ref();
        let is_added = match &self.experts {
            ExpertSet::Cached { .. } => false,
            ExpertSet::All(experts) => {
                let expert = |index: usize| {
                    let (Mlp { gate_up, down, activation }, is_gated) = (&experts[index], config.gated_mlp);
                    let products = [gate_up, down].map(|linear| (&linear.matrix, linear.bias.as_ref()));
                    let factor = self.factors.get(index).copied();
                    RoutedMlp { products, activation: *activation, is_gated, factor }
                };
                backend.add_routed((logits, bias, rows), routes, expert, from, to)
            }
        };
        if !is_added {
            backend.route(logits, bias, rows, routes);
        }
        let routes = &*routes;
        let needed = |index| !is_added && backend.num_routed(routes, index) > 0;
        self.experts.each(pass, needed, |index, expert| {
            let rows = backend.num_routed(routes, index);
            backend.gather_routed(routes, index, from, width, gathered);
            expert.apply(pass, (gathered, rows), activated, Out::Store(results));
            if let Some(&factor) = self.factors.get(index) {
                backend.scale(factor, results, Extent { rows, width });
            }
            backend.scatter_routed(routes, index, results, width, to);
        });
        if let Some([_, behind]) = &self.latent {
            behind.apply(backend, sums, rows, Out::Add(x));
        }
        match &self.shared {
            Some(SharedExpert { gate: Some(gate), mlp }) => {
                backend.linear(input, rows, gate, None, Out::Store(shared_gates));
                mlp.apply(pass, (input, rows), activated, Out::Store(results));
                backend.add_gated(shared_gates, results, x, Extent { rows, width: hidden });
            }
            Some(SharedExpert { gate: None, mlp }) if config.experts.is_some_and(|experts| experts.halved) => {
                mlp.apply(pass, (input, rows), activated, Out::Store(results));
                backend.add_scaled(results, 0.5, x, Extent { rows, width: hidden });
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
        let latent = self.latent.iter().flatten().map(|linear| linear.bytes(backend)).sum::<usize>();
        self.router.bytes(backend)
            + bias
            + shared
            + latent
            + self.beside.as_ref().map_or(0, |beside| beside.bytes(backend))
    }
}
