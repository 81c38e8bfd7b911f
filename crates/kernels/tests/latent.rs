//! Latent attention around the cache: one set of bits on every path.

use crate::paths::{bits, numbers};
use kernels::kv_cache::KvPlace;
use kernels::threads::max_threads;
use kernels::{
    AccumulationOrder, Buffer, Cpu, CpuOptions, Device, HeadColumns, HeadLayout, HostBackend, Isa, KvCache, KvDtype,
    KvShape, LatentRows, LatentShape, Latents, MatrixShape, QueryGrowth, Reference, RopeScaling, RopeTable, RowSource,
    WeightClass,
};

/// Every instruction set with an accumulation order, on one thread and on two.
fn cpus(arithmetic: AccumulationOrder) -> Vec<Cpu> {
    let threads = 1..=max_threads().min(2);
    let of = |isa: Isa| threads.clone().map(move |threads| (isa, threads));
    let options = |(isa, threads)| CpuOptions {
        threads: Some(threads),
        isa: Some(isa),
        arithmetic: Some(arithmetic),
        ..CpuOptions::default()
    };
    Isa::available().into_iter().flat_map(of).map(|at| Cpu::new(options(at)).unwrap()).collect()
}

#[test]
fn products_by_head_have_the_bits_of_a_product_for_each_head() {
    // Heads, numbers that a head reads and those it passes over, that it makes and that stay.
    let shapes = [(5, (12, 4), (48, 16)), (2, (130, 0), (33, 1)), (1, (64, 64), (10, 0)), (16, (128, 64), (512, 64))];
    for arithmetic in AccumulationOrder::ALL {
        let reference = Reference::of(arithmetic);
        for (class, (heads, (width, over), (made, kept))) in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4]
            .into_iter()
            .flat_map(|class| shapes.map(|shape| (class, shape)))
        {
            let shape = MatrixShape { out_features: made, in_features: width };
            let from = HeadColumns { width: heads * (width + over), stride: width + over };
            let to = HeadColumns { width: heads * (made + kept), stride: made + kept };
            let weights = |head: usize, row: usize, out: &mut [f32]| {
                out.copy_from_slice(&numbers((head * made + row) as u64, width));
                // Columns of other sizes, which are others in each head.
                out.iter_mut().skip(head).step_by(5).for_each(|weight| *weight /= 64.0);
            };
            for rows in testing::part_of(if heads == 16 { vec![1, 13] } else { vec![1, 7, 100] }, 1) {
                let x = numbers(7, rows * from.width);
                let mut want = vec![3.0; rows * to.width];
                let matrix = |head: usize| {
                    reference.pack(shape, class, &RowSource(&|row, out: &mut [f32]| weights(head, row, out))).unwrap()
                };
                let matrices: Vec<_> = (0..heads).map(matrix).collect();
                reference.linear_by_head((&x, from), &matrices, (&mut want, to));
                assert!(
                    (0..rows * heads).all(|head| want[head * to.stride..][made..to.stride].iter().all(|x| *x == 3.0))
                );
                for cpu in cpus(arithmetic) {
                    let mut got = vec![3.0; rows * to.width];
                    cpu.linear_by_head((&x, from), &matrices, (&mut got, to));
                    assert!(bits(&got) == bits(&want), "{class:?}, {shape:?}, {rows} rows, {}", cpu.describe());
                }
            }
        }
    }
}

/// `x` turned at `position`, as the second half of it is with the first.
fn turned(x: &[f32], position: u32) -> Vec<f64> {
    let half = x.len() / 2;
    let angle = |i: usize| f64::from(position) * 1e4f64.powf(-((2 * (i % half)) as f64) / x.len() as f64);
    let of = |i: usize| {
        let (a, b) = (f64::from(x[i % half]), f64::from(x[i % half + half]));
        let (sin, cos) = angle(i).sin_cos();
        if i < half { a * cos - b * sin } else { b * cos + a * sin }
    };
    (0..x.len()).map(of).collect()
}

#[test]
fn keys_and_queries_have_the_bits_of_the_definition_and_are_those_of_the_formulas() {
    let shape = LatentShape { num_heads: 3, rank: 48, plain: 12, turning: 16, value: 10 };
    let (layout, positions, slots) = (shape.layout(), [3, 8, 40, 41, 7], [9, 8, 70, 0, 33]);
    let rows = positions.len();
    let (mut norm, eps) = (Buffer::zeroed(shape.rank).unwrap(), 1e-6);
    norm.copy_from_slice(&numbers(1, shape.rank));
    let rope = RopeTable::new(shape.turning, 1e4, &RopeScaling::None, 64).unwrap();
    let rope = rope.with_growth(QueryGrowth { beta: 0.5, original_max_position: 8, first: 0 }).unwrap();
    let how = Latents { shape, norm: &norm, eps, rope: Some(&rope), layer: 1 };
    let queries = numbers(2, rows * shape.query_width());
    let (keys, absorbed) = (numbers(3, rows * layout.head_dim), numbers(4, rows * layout.q_width()));
    for dtype in KvDtype::ALL {
        let HeadLayout { head_dim, latent, .. } = layout;
        let cache = KvShape { dtype, layers: 2, blocks: 3, block_size: 32, num_kv_heads: 1, head_dim, latent };
        let run = |backend: &dyn Fn(LatentRows<'_>, &mut KvCache)| {
            let (mut keys, mut absorbed, mut kv) = (keys.clone(), absorbed.clone(), KvCache::new(cache).unwrap());
            let (queries, positions) = (&queries[..], &positions[..]);
            backend(LatentRows { queries, keys: &mut keys, absorbed: &mut absorbed, positions }, &mut kv);
            let mut bytes = vec![0; 3 * cache.block_bytes()];
            let blocks = bytes.chunks_exact_mut(cache.block_bytes()).zip(0..);
            blocks.for_each(|(out, block)| kv.read_block(block, out));
            (bits(&absorbed), bytes, kv)
        };
        let (want, want_bytes, kv) = run(&|rows, kv| Reference::new().store_latents(how, rows, &slots, kv));
        for cpu in cpus(AccumulationOrder::Amx) {
            let (got, bytes, _) = run(&|rows, kv| cpu.store_latents(how, rows, &slots, kv));
            assert!((&got, &bytes) == (&want, &want_bytes), "{dtype:?}, {}", cpu.describe());
        }
        let tolerance = if dtype == KvDtype::Bf16 { 0.005 } else { 0.02 };
        for (row, (&position, &slot)) in positions.iter().zip(&slots).enumerate() {
            let factor = 1.0 + 0.5 * f64::from(1 + position / 8).ln();
            for head in 0..shape.num_heads {
                let at = |width: usize| row * shape.num_heads * width + head * width;
                let (query, was) = (&queries[at(28)..][..28], &absorbed[at(64)..][..48]);
                let exact = was.iter().map(|&x| f64::from(x)).chain(turned(&query[12..], position));
                for (got, exact) in want[at(64)..][..64].iter().zip(exact) {
                    let got = f64::from(f32::from_bits(*got));
                    assert!((got - exact * factor).abs() <= 1e-5 * exact.abs().max(1.0), "row {row}: {got}");
                }
            }
            let (latent, turning) = keys[row * 64..][..64].split_at(48);
            let mean = latent.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 48.0 + f64::from(eps);
            let normed = latent.iter().zip(&*norm).map(|(&x, &w)| f64::from(x) / mean.sqrt() * f64::from(w));
            let exact: Vec<f64> = normed.chain(turned(turning, position)).collect();
            let largest = exact.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            for (d, exact) in exact.iter().enumerate() {
                let place = KvPlace { layer: 1, slot: slot as usize, kv_head: 0 };
                let got = f64::from(kv.key(place, d));
                assert!((got - exact).abs() <= tolerance * largest, "{dtype:?}, row {row}, number {d}: {got}, {exact}");
                assert!(d >= 48 || kv.value(place, d).to_bits() == kv.key(place, d).to_bits());
            }
        }
    }
}
