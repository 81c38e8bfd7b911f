//! Latent attention between its products and attention over the cache, and products by head.

use std::borrow::Borrow;

use kernels::{HeadColumns, Latents, Out};

use crate::backend::GpuStep;
use crate::device::{GpuKvCache, Matrix, Vulkan};
use crate::recorder::Binding;
use crate::rows::{GpuRows, Vector};

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
        let state = &mut *self.state();
        for (head, w) in matrices.iter().map(Borrow::borrow).enumerate() {
            let converted = self.convert(state, (&x.0, [from.width, head * from.stride]), rows, w);
            let out = Out::StoreAt { out: &mut *out, at: head * to.stride, width: to.width };
            self.product_of(state, (&converted, rows), (w, None), out);
        }
    }
}
