//! Every path that an operation can take here, and the numbers to send along it.

use kernels::Isa;
use kernels::threads::{Pool, max_threads};
use testing::Dice;

/// Numbers of both signs and many magnitudes, the same on every machine.
pub(crate) fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut dice = Dice::new(seed);
    (0..len)
        .map(|_| {
            let bits = dice.bits();
            let magnitude = [0.01, 0.5, 2.0, 30.0][(bits >> 32) as usize % 4];
            ((bits as u16) as f32 / 32768.0 - 1.0) * magnitude
        })
        .collect()
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Runs on every instruction set, with and without threads, and demands what the definition returned.
pub(crate) fn every_path<T: PartialEq>(what: &str, mut f: impl FnMut(Option<&Pool>, Isa) -> T) {
    let want = f(None, Isa::Scalar);
    let mut pools = vec![None, Some(Pool::new(1).unwrap())];
    if max_threads() >= 2 {
        pools.push(Some(Pool::new(2).unwrap()));
    }
    for pool in &pools {
        for isa in Isa::available() {
            let threads = pool.as_ref().map_or(0, Pool::threads);
            assert!(f(pool.as_ref(), isa) == want, "{what}, {isa:?}, {threads} threads");
        }
    }
}
