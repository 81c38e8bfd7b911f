//! Latent attention between its products and attention over the cache, and products by head.

use std::borrow::Borrow;
use std::sync::Arc;

use kernels::{HeadColumns, Latents, Out};

use crate::backend::GpuStep;
use crate::device::{GpuKvCache, Matrix, State, Vulkan};
use crate::memory::Buffer;
use crate::products::MANY_FROM;
use crate::recorder::Binding;
use crate::routes::{LISTED, TILE, TILES};
use crate::rows::{GpuRows, LANES, Vector};

impl Vulkan {
    pub(crate) fn latents(
        &self,
        step: &GpuStep,
        how: Latents<'_, Vector>,
        queries: &GpuRows,
        (keys, absorbed): (&mut GpuRows, &mut GpuRows),
        kv: &mut GpuKvCache,
    ) {
        let Latents { shape, norm, eps, rope, layer } = how;
        let (rotary, factors) = (rope.map_or(0, |rope| rope.rotary_dim()), rope.and_then(|rope| rope.query_factors()));
        let (head_dim, has_factors) = (shape.layout().head_dim, usize::from(factors.is_some()));
        let (places, slots_at) = step.places();
        let sizes = [shape.num_heads, head_dim, shape.rank, shape.plain, rotary, has_factors].map(|n| n as u32);
        let push = sizes.into_iter().chain([eps.to_bits()]).chain(Vulkan::of_cache(kv)).chain([slots_at]);
        let vectors = [rope.map(|rope| rope.table()), factors, Some(norm)];
        let [angles, factors, norm] =
            vectors.map(|vector| Binding::whole(vector.map_or(&queries.0, |vector| &vector.buffer)));
        let [queries, keys, absorbed, cache] =
            [&queries.0, &keys.0, &absorbed.0, &kv.layers[layer]].map(Binding::whole);
        let all = [queries, places, angles, factors, norm, keys, absorbed, cache];
        let [kernel, _] = self.kernels.of_cache(&kv.shape);
        // A key lies behind the queries of its row.
        self.state().recorder.dispatch(kernel, &all, push, [step.rows as u32, shape.num_heads as u32 + 1, 1]);
    }

    pub(crate) fn products_by_head(
        &self,
        (x, from): (&GpuRows, HeadColumns),
        rows: usize,
        matrices: &[impl Borrow<Matrix> + Sync],
        (out, to): (&mut GpuRows, HeadColumns),
    ) {
        if rows < MANY_FROM && self.heads_together((x, from), rows, matrices, (out, to)) {
            return;
        }
        let state = &mut *self.state();
        for (head, w) in matrices.iter().map(Borrow::borrow).enumerate() {
            let converted = self.convert(state, (&x.0, [from.width, head * from.stride]), rows, w);
            let out = Out::StoreAt { out: &mut *out, at: head * to.stride, width: to.width };
            self.product_of(state, (&converted, rows), (w, None), out);
        }
    }

    /// All heads of a few rows in three dispatches, as experts that come together. False: their matrices are not
    /// alike, or the first one is that of other heads too.
    fn heads_together(
        &self,
        (x, from): (&GpuRows, HeadColumns),
        rows: usize,
        matrices: &[impl Borrow<Matrix> + Sync],
        (out, to): (&GpuRows, HeadColumns),
    ) -> bool {
        let (all, entries) = (|| matrices.iter().map(Borrow::borrow), matrices.len() * rows);
        let Some(w) = all().next() else { return true };
        let make = || {
            let addresses = all().flat_map(|w| {
                let [weights, scales, levels, shifts] = w.addresses();
                [weights, scales, levels, 0, shifts]
            });
            let holds = || all().map(|w| w.buffer.clone()).collect();
            all().all(|other| w.is_like(other)).then(|| self.table(Matrix::address_words(addresses), holds()))?
        };
        let is_of = |table: &&Arc<Buffer>| table.holds.iter().map(|w| w.number).eq(all().map(|w| w.buffer.number));
        let Some(table) = w.heads.get_or_init(make).as_ref().filter(is_of) else { return false };
        let state = &mut *self.state();
        let State { recorder, scratch, .. } = state;
        let [list, tiles] = [LISTED, TILE].map(|words| (4 * words * entries.next_multiple_of(TILES)) as u64);
        let both = self.scratch(recorder, &mut scratch.heads, (list + tiles) as usize);
        let list = Binding { buffer: &both, at: 0, bytes: list };
        let tiles = Binding { buffer: &both, at: list.bytes, bytes: tiles };
        let push = [entries, rows, from.width, from.stride, self.kernel_of(w, None, false).1].map(|n| n as u32);
        let groups = [entries.div_ceil(LANES) as u32, 1, 1];
        recorder.dispatch(&self.kernels.heads, &[Binding::whole(table), list, tiles], push, groups);
        // An entry says where its numbers begin, wherever that is in a row.
        let converted = self.convert_routed(state, (&x.0, list, entries), w, ([0; 2], 1));
        self.product_routed(state, (&converted, tiles, entries), (w, false), (&out.0, to, rows), None);
        true
    }
}
