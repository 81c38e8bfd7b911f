//! Whether a device computes as the kernels need it, and how fast it can at most.
//!
//! Vulkan promises that `+ - *` of f32 round correctly, and drivers are programs: so they are asked when a device is
//! opened, with numbers of the sizes that models have, some of which cancel. One bit that differs refuses it by name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use figures::random::Random;
use kernels::limits::MeasureError;
use kernels::{Certainty, DeviceLimits};

use crate::device::Vulkan;
use crate::driver::{Driver, LARGEST_GROUP, VulkanError};
use crate::matrices::{TILE, Units};
use crate::memory::{Buffer, Place};
use crate::pipelines::{Kernels, Pipeline};
use crate::recorder::{Binding, Recorder};

/// Cases of each operation.
const CASES: usize = 1 << 14;

/// An operation of the probe: its number in the kernel, its name and its definition on three numbers.
struct Operation {
    code: u32,
    name: &'static str,
    of: fn([f32; 3]) -> f32,
}

const FUSED: Operation = Operation { code: 4, name: "fma(x, y, z)", of: |[x, y, z]| x.mul_add(y, z) };

const OPERATIONS: [Operation; 7] = [
    Operation { code: 0, name: "x + y", of: |[x, y, _]| x + y },
    Operation { code: 1, name: "x - y", of: |[x, y, _]| x - y },
    Operation { code: 2, name: "x * y", of: |[x, y, _]| x * y },
    Operation { code: 3, name: "x * y + z, rounded twice", of: |[x, y, z]| x * y + z },
    Operation { code: 5, name: "x * y + z, rounded once", of: |[x, y, z]| x.mul_add(y, z) },
    Operation { code: 6, name: "x / y", of: |[x, y, _]| x / y },
    Operation { code: 7, name: "the root of |x|", of: |[x, ..]| x.abs().sqrt() },
];

/// Numbers between 2^-20 and 2^20; of every second case the third nearly cancels the product of the others.
fn cases() -> Vec<[f32; 3]> {
    let mut random = Random::new(CASES as u64);
    let mut bits = || random.bits() as u32;
    let mut number = || f32::from_bits((bits() & 0x807f_ffff) | (107 + bits() % 41) << 23);
    let case = |index: usize| {
        let [x, y, z] = [number(), number(), number()];
        // The sum's sign and the last bits of the product decide.
        let near = -(x * y) * (1.0 + f32::from_bits(z.to_bits() & 0x7f | 0x3f80_0000) * 1e-6);
        [x, y, if index.is_multiple_of(2) { z } else { near }]
    };
    (0..CASES).map(case).collect()
}

/// The results of an operation, as bits.
fn results(
    driver: &Arc<Driver>,
    recorder: &mut Recorder,
    probe: &Pipeline,
    place: Place,
    (cases, operation): (&[[f32; 3]], &Operation),
) -> Result<Vec<u32>, VulkanError> {
    let bytes: Vec<u8> = cases.iter().flatten().flat_map(|number| number.to_ne_bytes()).collect();
    let operands = Arc::new(Buffer::new(driver, bytes.len() as u64, place)?);
    let out = Arc::new(Buffer::new(driver, 4 * cases.len() as u64, place)?);
    recorder.upload(&operands, 0, &bytes)?;
    let bindings = [Binding::whole(&operands), Binding::whole(&out)];
    let groups = [cases.len().div_ceil(64) as u32, 1, 1];
    recorder.dispatch(probe, &bindings, [cases.len() as u32, operation.code], groups);
    let mut bytes = vec![0; 4 * cases.len()];
    recorder.download(&out, 0, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|bits| u32::from_ne_bytes(*bits)).collect())
}

/// Whether the device's fma rounds once.
pub(crate) fn fuses(driver: &Arc<Driver>, recorder: &mut Recorder, place: Place) -> Result<bool, VulkanError> {
    let cases = cases();
    let found = results(driver, recorder, &Pipeline::probe(driver), place, (&cases, &FUSED))?;
    Ok(cases.iter().zip(found).all(|(case, bits)| (FUSED.of)(*case).to_bits() == bits))
}

/// Refuses a device whose arithmetic differs.
pub(crate) fn check(recorder: &mut Recorder, kernels: &Kernels, place: Place) -> Result<(), VulkanError> {
    let (driver, cases) = (&kernels.driver, cases());
    for operation in &OPERATIONS {
        let found = results(driver, recorder, &kernels.probe, place, (&cases, operation))?;
        for (case, found) in cases.iter().zip(found) {
            let expected = (operation.of)(*case).to_bits();
            if found != expected {
                let [x, y, z] = case;
                let operation = format!("{} of {x:e}, {y:e}, {z:e}", operation.name);
                return Err(VulkanError::Arithmetic { device: driver.listed.to_string(), operation, found, expected });
            }
        }
    }
    Ok(())
}

/// Cases of matrices.
const PRODUCTS: usize = 64;

/// Whether matrices are multiplied exactly, with the smallest and the largest bytes among them.
pub(crate) fn multiplies(recorder: &mut Recorder, kernels: &Kernels, place: Place) -> Result<bool, VulkanError> {
    // A compiler that fails here is one more reason to go without.
    let Some(Units { rows, columns, .. }) = kernels.driver.units.filter(|_| kernels.probe_matrices.handle().is_ok())
    else {
        return Ok(false);
    };
    let [rows, columns, depth] = [rows, columns, TILE[2]].map(|n| n as usize);
    let mut random = Random::new(PRODUCTS as u64);
    let mut byte = || match random.bits() as u32 {
        bits if bits.is_multiple_of(4) => [i8::MIN, i8::MAX][bits as usize / 4 % 2],
        bits => (bits >> 8) as i8,
    };
    let (mut given, mut expected) = (Vec::<u8>::new(), Vec::<u8>::new());
    for _ in 0..PRODUCTS {
        let lines: Vec<Vec<i8>> = (0..rows + columns).map(|_| (0..depth).map(|_| byte()).collect()).collect();
        let factors: Vec<i32> = (0..columns).map(|_| byte().into()).collect();
        given.extend(lines.iter().flatten().map(|byte| byte.cast_unsigned()));
        given.extend(factors.iter().flat_map(|factor| factor.to_ne_bytes()));
        let (of_rows, of_columns) = lines.split_at(rows);
        expected.extend(of_rows.iter().flat_map(|row| {
            of_columns.iter().zip(&factors).flat_map(|(column, factor)| {
                let sum = row.iter().zip(column).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>();
                (2 * factor * sum).to_ne_bytes()
            })
        }));
    }
    let [operands, out] = [given.len(), expected.len()].map(|bytes| Buffer::new(&kernels.driver, bytes as u64, place));
    let (operands, out) = (Arc::new(operands?), Arc::new(out?));
    recorder.upload(&operands, 0, &given)?;
    let bindings = [&operands, &out].map(Binding::whole);
    recorder.dispatch(&kernels.probe_matrices, &bindings, [], [PRODUCTS as u32, 1, 1]);
    let mut found = vec![0; expected.len()];
    recorder.download(&out, 0, &mut found)?;
    Ok(found == expected)
}

/// Invocations of a measurement of operations.
const INVOCATIONS: usize = 1 << 18;
/// Numbers of a measurement of memory.
const NUMBERS: usize = 8 << 20;

impl Vulkan {
    /// Peak rates: bytes that a kernel reads and writes in memory, and operations in registers.
    pub(crate) fn measure(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        let budget = Duration::from_secs_f64(seconds / 3.0);
        let memory = self.zeroed(NUMBERS * size_of::<f32>())?;
        let rate = |each: f64, work: &dyn Fn()| {
            let (begun, mut rates) = (Instant::now(), Vec::new());
            // The first run pays for what was never used.
            work();
            while rates.len() < 3 || begun.elapsed() < budget {
                let begun = Instant::now();
                work();
                rates.push(each / begun.elapsed().as_secs_f64());
            }
            rates
        };
        let wait = || {
            // A device that is lost meanwhile is told at the next door.
            let _ = self.state().recorder.wait();
        };
        let bandwidth = rate(2.0 * 4.0 * NUMBERS as f64, &|| {
            let width = 1 << 14;
            let push = [width, 0, 0, 0, 1f32.to_bits(), 0];
            let bindings = [Binding::whole(&memory); 3];
            let groups = [width / 64, (NUMBERS as u32) / width, 1];
            self.state().recorder.dispatch(&self.kernels.pointwise, &bindings, push, groups);
            wait();
        });
        let of = |operation: u32, rounds: u32, per_round: f64| {
            rate(f64::from(rounds) * per_round * INVOCATIONS as f64, &|| {
                let groups = [(INVOCATIONS / 64) as u32, 1, 1];
                let bindings = [Binding::whole(&memory)];
                self.state().recorder.dispatch(&self.kernels.peak, &bindings, [rounds, operation], groups);
                wait();
            })
        };
        let rounds = 64;
        let units = self.driver.units.filter(|_| self.kernels.has_matrices);
        let of_matrices = units.map(|units| {
            let lanes = LARGEST_GROUP as usize;
            rate(f64::from(rounds) * 8.0 * units.operations_per_lane() * INVOCATIONS as f64, &|| {
                let (kernel, groups) = (&self.kernels.peak_matrices, [(INVOCATIONS / lanes) as u32, 1, 1]);
                self.state().recorder.dispatch(kernel, &[Binding::whole(&memory)], [rounds], groups);
                wait();
            })
        });
        let int8_kind = if units.is_some() { "matrices of bytes" } else { "dot4" };
        let int8 = of_matrices.unwrap_or_else(|| of(0, rounds, 64.0));
        let [f32_twice, f32_once] = [1, 2].map(|operation| of(operation, rounds, 16.0));
        let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
        let [bytes, int8_ops, bf16_flops, f32_flops] =
            [&bandwidth, &int8, &f32_twice, &f32_once].map(|rates| best(rates));
        let certainty = [&bandwidth, &bandwidth, &int8, &f32_twice, &f32_once].map(|rates| Certainty::of_rates(rates));
        let bf16_kind = "f32 product and sum";
        Ok(DeviceLimits {
            read_bandwidth: bytes,
            cache_bandwidth: bytes,
            cache_bytes: 0,
            int8_ops,
            bf16_flops,
            f32_flops,
            int8_kind,
            bf16_kind,
            fastest_int8_ops: int8_ops,
            fastest_int8_kind: int8_kind,
            fastest_bf16_flops: bf16_flops,
            fastest_bf16_kind: bf16_kind,
            certainty,
        })
    }
}
