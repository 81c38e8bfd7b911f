//! The paths that any CPU has, in cases so small that Miri can run them: `cargo xtask miri`. Bits are compared here
//! too, but that is the business of `twins` and `attention`.

use crate::common;
use crate::common::low_rank;

use common::{Case, KINDS, values};
use kernels::attention::attend;
use kernels::pointwise::rotate_and_store;
use kernels::threads::{Pool, max_threads};
use kernels::{
    AccumulationOrder, Attention, AttentionRule, AttentionSpan, Cpu, CpuOptions, HeadLayout, HeadNorms, Isa, KvCache,
    KvDtype, KvShape, MatrixShape, RopeScaling, RopeTable, RotateAndStore,
};
use testing::Dice;

/// Two, where there are: what threads share is part of the question.
fn threads() -> usize {
    max_threads().min(2)
}

#[test]
fn products_of_every_kind() {
    let cpus = AccumulationOrder::ALL.map(|arithmetic| {
        let (threads, isa) = (Some(threads()), Some(Isa::Scalar));
        Cpu::new(CpuOptions { threads, isa, arithmetic: Some(arithmetic), ..CpuOptions::default() }).unwrap()
    });
    // By turns two steps deep or two pairs of strips wide.
    let shapes = [(3, 65, 2), (33, 5, 1)];
    for ((seed, kind), (out_features, in_features, rows)) in
        KINDS.into_iter().enumerate().zip(shapes.into_iter().cycle())
    {
        let case = Case::new(seed as u64, kind, MatrixShape { out_features, in_features }, rows);
        cpus.iter().filter(|cpu| case.concerns(cpu)).for_each(|cpu| case.check(cpu));
    }
}

#[test]
fn low_rank_products_of_two_groups() {
    let cpus = AccumulationOrder::ALL.map(|arithmetic| {
        let (threads, isa) = (Some(threads()), Some(Isa::Scalar));
        Cpu::new(CpuOptions { threads, isa, arithmetic: Some(arithmetic), ..CpuOptions::default() }).unwrap()
    });
    let random = &mut Dice::new(1);
    let groups = vec![
        (low_rank::Matrices::new(random, 35, &[(20, 3), (5, 2)], |row| row), vec![0, 3]),
        (low_rank::single(random, 35, 25, 1), vec![2]),
    ];
    low_rank::Case::new("two groups".into(), groups, 4, random).check(&cpus);
}

#[test]
fn rows_are_rotated_stored_and_attended_to() {
    const LAYOUT: HeadLayout =
        HeadLayout { num_heads: 2, num_kv_heads: 1, head_dim: 16, gates: 0, queries_only: false, latent: None };
    const TOKENS: usize = 34; // more than a page
    const ATTENDED: usize = 3;
    let rope = RopeTable::new(16, 10_000.0, &RopeScaling::None, 64).unwrap();
    let pool = Pool::new(threads()).unwrap();
    for dtype in [KvDtype::Bf16, KvDtype::Int8] {
        let shape =
            KvShape { dtype, layers: 1, blocks: 2, block_size: 32, num_kv_heads: 1, head_dim: 16, latent: None };
        let (mut kv, mut qkv) = (KvCache::new(shape).unwrap(), values(&mut Dice::new(1), TOKENS * LAYOUT.qkv_width()));
        let (positions, slots): (Vec<u32>, Vec<u32>) = (0..TOKENS as u32).map(|token| (token, token)).unzip();
        let args = RotateAndStore {
            qkv: &mut qkv,
            layout: LAYOUT,
            head_norms: HeadNorms::None,
            rope: Some(&rope),
            positions: &positions,
            slots: &slots,
            layer: 0,
        };
        rotate_and_store(Some(&pool), Isa::Scalar, args, &mut kv);
        let (start, qkv) = (TOKENS - ATTENDED, &qkv[(TOKENS - ATTENDED) * LAYOUT.qkv_width()..]);
        let attend_with = |pool: Option<&Pool>| {
            let mut out = vec![f32::NAN; ATTENDED * LAYOUT.q_width()];
            let spans = [AttentionSpan { first_row: 0, num_rows: ATTENDED, start, blocks: &[0, 1] }];
            let rule = AttentionRule { softcap: Some(5.0), window: Some(33), ..AttentionRule::of_width(16) };
            let args = Attention { qkv, layout: LAYOUT, rule, sinks: Some(&[0.5, -2.0]), spans: &spans, layer: 0 };
            attend(pool, Isa::Scalar, AccumulationOrder::Vdpbf16, args, &kv, &mut out);
            out
        };
        let out = attend_with(Some(&pool));
        assert!(out.iter().all(|x| x.is_finite()), "{dtype:?}");
        assert_eq!(out, attend_with(None), "{dtype:?}");
    }
}

#[test]
fn regions_of_a_pool_share_and_sleep_and_panic() {
    let pool = Pool::new(max_threads().min(3)).unwrap();
    for count in [1, 40] {
        let mut numbers = vec![0usize; count];
        let slots: Vec<_> = numbers.iter_mut().map(std::sync::Mutex::new).collect();
        pool.shares(count, &|range| range.for_each(|i| **slots[i].lock().unwrap() += i + 1));
        pool.tasks(count, &|i| **slots[i].lock().unwrap() += i + 1);
        drop(slots);
        assert!(numbers.into_iter().enumerate().all(|(i, number)| number == 2 * (i + 1)));
    }
    let culprit = pool.threads() - 1;
    let region = || pool.run(&|thread| assert_ne!(thread, culprit, "planned"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(region)).is_err());
    pool.run(&|_| ());
}
