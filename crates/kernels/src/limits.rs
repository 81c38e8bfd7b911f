//! What this machine can do at most, measured on the spot: the yardstick for every figure of speed.
//!
//! Read bandwidth is what bounds decode (each step reads all weights once), the rate of the multiply instruction what
//! bounds prefill. Both are taken on all threads of the pool at once, best of several passes. Nothing else should run
//! meanwhile: a busy core shows up as a lower limit.

use crate::arithmetic::Arithmetic;
pub use crate::device::DeviceLimits as Limits;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Amx, Avx2, Avx512, Avx512Bf16};
use crate::mem::Buffer;
use crate::threads::{Pool, share};
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Measures for about `seconds`, half of it reading.
pub fn measure(pool: &Pool, isa: Isa, arithmetic: Arithmetic, seconds: f64) -> Limits {
    let loops = Loop::available();
    let usable = |class: Class| loops.iter().filter(move |l| l.class == class);
    // The kernels use the last loop of a class that the ceiling allows; the CPU's best may be another.
    let share = Duration::from_secs_f64(seconds / 2.0 / loops.len() as f64);
    let rates: Vec<f64> = loops.iter().map(|l| l.rate(pool, share)).collect();
    let rate_of = |wanted: &Loop| rates[loops.iter().position(|l| l.name == wanted.name).expect("from the list")];
    let used = |class| usable(class).rfind(|l| l.serves(isa, arithmetic));
    let fastest =
        |class| usable(class).max_by(|a, b| rate_of(a).total_cmp(&rate_of(b))).expect("scalar is always there");
    let [int8, float] = [Class::Int8, Class::Float].map(|class| used(class).expect("scalar is always there"));
    let bf16 = used(Class::Bf16).unwrap_or(float);
    let fastest_int8 = fastest(Class::Int8);
    let fastest_bf16 = [Class::Float, Class::Bf16]
        .into_iter()
        .flat_map(usable)
        .max_by(|a, b| rate_of(a).total_cmp(&rate_of(b)))
        .expect("scalar is always there");
    Limits {
        read_bandwidth: read_bandwidth(pool, Duration::from_secs_f64(seconds / 2.0)),
        int8_ops: rate_of(int8),
        bf16_flops: rate_of(bf16),
        f32_flops: rate_of(float),
        int8_kind: int8.name,
        bf16_kind: bf16.name,
        fastest_int8_ops: rate_of(fastest_int8),
        fastest_int8_kind: fastest_int8.name,
        fastest_bf16_flops: rate_of(fastest_bf16),
        fastest_bf16_kind: fastest_bf16.name,
    }
}

/// What a loop multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Int8,
    /// f32 multiply-add, which serves bf16 too.
    Float,
    /// Instructions that take bf16 itself.
    Bf16,
}

/// A loop over registers that does nothing but multiply and add.
struct Loop {
    name: &'static str,
    class: Class,
    /// The lowest ISA whose kernels use this instruction.
    used_from: Isa,
    /// The arithmetic that it computes; `None`: it is exact, or serves both.
    arithmetic: Option<Arithmetic>,
    /// Runs some rounds and returns the multiply-adds done.
    run: Box<dyn Fn(usize) -> f64 + Sync>,
}

impl Loop {
    /// One that serves both arithmetics.
    fn new(name: &'static str, class: Class, used_from: Isa, run: impl Fn(usize) -> f64 + Sync + 'static) -> Loop {
        Loop { name, class, used_from, arithmetic: None, run: Box::new(run) }
    }

    /// One that computes a single arithmetic.
    #[cfg(target_arch = "x86_64")]
    fn of(self, arithmetic: Arithmetic) -> Loop {
        Loop { arithmetic: Some(arithmetic), ..self }
    }

    /// Every loop that this CPU can run, slower instruction sets first. Each holds the proof of its instructions.
    fn available() -> Vec<Loop> {
        let mut loops = vec![
            Loop::new("scalar int8", Class::Int8, Isa::Scalar, scalar_int8),
            Loop::new("scalar f32", Class::Float, Isa::Scalar, scalar_f32),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            use crate::gemm::amx::peak;
            use crate::quant::WeightClass;
            use x86::*;
            if let Some(proof) = Avx2::detect() {
                let (int8, fma) = (move |rounds| avx2_int8(proof, rounds), move |rounds| avx2_fma(proof, rounds));
                loops.push(Loop::new("avx2 vpmaddubsw", Class::Int8, Isa::Avx2, int8));
                loops.push(Loop::new("avx2 vfmadd231ps", Class::Float, Isa::Avx2, fma));
            }
            if let Some(proof) = Avx512::detect() {
                let (int8, fma) = (move |rounds| avx512_int8(proof, rounds), move |rounds| avx512_fma(proof, rounds));
                loops.push(Loop::new("avx512 vpdpbusd", Class::Int8, Isa::Avx512, int8));
                loops.push(Loop::new("avx512 vfmadd231ps", Class::Float, Isa::Avx512, fma));
            }
            if let Some(proof) = Avx512Bf16::detect() {
                let bf16 = move |rounds| avx512_bf16(proof, rounds);
                let bf16 = Loop::new("avx512 vdpbf16ps", Class::Bf16, Isa::Avx512Bf16, bf16);
                loops.push(bf16.of(Arithmetic::Pairs));
            }
            if let Some(proof) = Amx::detect() {
                let int8 = move |rounds| peak(proof, WeightClass::Int8, rounds);
                let bf16 = move |rounds| peak(proof, WeightClass::Bf16, rounds);
                loops.push(Loop::new("amx tdpbssd", Class::Int8, Isa::Amx, int8));
                loops.push(Loop::new("amx tdpbf16ps", Class::Bf16, Isa::Amx, bf16).of(Arithmetic::Tiles));
            }
        }
        loops
    }

    /// Whether kernels below this ceiling use it for this arithmetic.
    fn serves(&self, isa: Isa, arithmetic: Arithmetic) -> bool {
        isa >= self.used_from && self.arithmetic.is_none_or(|its| its == arithmetic)
    }

    /// Operations per second on all threads.
    fn rate(&self, pool: &Pool, budget: Duration) -> f64 {
        let start = Instant::now();
        let mut rounds = 1 << 10;
        let mut best = 0f64;
        loop {
            let begin = Instant::now();
            pool.run(&|_| {
                black_box((self.run)(black_box(rounds)));
            });
            let took = begin.elapsed().as_secs_f64();
            if took > 0.002 {
                best = best.max(2.0 * (self.run)(1) * rounds as f64 * pool.threads() as f64 / took);
            } else {
                rounds *= 2; // too short to time against the cost of a region
            }
            if best > 0.0 && start.elapsed() >= budget {
                return best;
            }
        }
    }
}

/// 16 lanes of widening int8 multiply-add, as the compiler likes it.
fn scalar_int8(rounds: usize) -> f64 {
    let (x, w) = (black_box([3i8; 16]), black_box([-7i8; 16]));
    let mut sums = [[0i32; 16]; 4];
    for _ in 0..rounds {
        for sums in &mut sums {
            for ((sum, &x), &w) in sums.iter_mut().zip(&x).zip(&w) {
                *sum = (i32::from(x) * i32::from(w)).wrapping_add(*sum);
            }
        }
        sums = black_box(sums);
    }
    (rounds * 64) as f64
}

fn scalar_f32(rounds: usize) -> f64 {
    let (x, w) = (black_box([0.5f32; 16]), black_box([0.25f32; 16]));
    let mut sums = [[0f32; 16]; 4];
    for _ in 0..rounds {
        for sums in &mut sums {
            for ((sum, &x), &w) in sums.iter_mut().zip(&x).zip(&w) {
                *sum = x.mul_add(w, *sum);
            }
        }
        sums = black_box(sums);
    }
    (rounds * 64) as f64
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::isa::{Avx2, Avx512, Avx512Bf16};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// A loop over independent accumulators, enough to hide the latency of two pipes.
    macro_rules! register_loop {
        (
            $name:ident, $proof:ty, $features:literal,
            $count:literal, $zero:expr, $x:expr, $w:expr, $step:expr, $macs:literal
        ) => {
            pub(super) fn $name(_proof: $proof, rounds: usize) -> f64 {
                #[target_feature(enable = $features)]
                fn inner(rounds: usize) {
                    let (x, w) = (black_box($x), black_box($w));
                    let mut sums = [$zero; $count];
                    for _ in 0..rounds {
                        for sum in &mut sums {
                            *sum = $step(*sum, x, w);
                        }
                    }
                    black_box(sums);
                }
                // SAFETY: the features are among those of the proof.
                unsafe { inner(rounds) };
                (rounds * $count * $macs) as f64
            }
        };
    }

    register_loop!(
        avx2_int8,
        Avx2,
        "avx2",
        12,
        _mm256_set1_epi8(-7),
        _mm256_set1_epi8(3),
        _mm256_set1_epi16(1),
        // The sum itself is multiplied: the product of constants would be taken out of the loop.
        |sum, x, ones| _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, sum), ones)),
        32
    );
    register_loop!(
        avx2_fma,
        Avx2,
        "avx2,fma",
        12,
        _mm256_setzero_ps(),
        _mm256_set1_ps(0.5),
        _mm256_set1_ps(0.25),
        |sum, x, w| _mm256_fmadd_ps(x, w, sum),
        8
    );
    register_loop!(
        avx512_int8,
        Avx512,
        "avx512f,avx512vnni",
        16,
        _mm512_setzero_si512(),
        _mm512_set1_epi8(3),
        _mm512_set1_epi8(-7),
        |sum, x, w| _mm512_dpbusd_epi32(sum, x, w),
        64
    );
    register_loop!(
        avx512_fma,
        Avx512,
        "avx512f",
        16,
        _mm512_setzero_ps(),
        _mm512_set1_ps(0.5),
        _mm512_set1_ps(0.25),
        |sum, x, w| _mm512_fmadd_ps(x, w, sum),
        16
    );

    /// Sixteen chains of `vdpbf16ps` on zeros.
    pub(super) fn avx512_bf16(_proof: Avx512Bf16, rounds: usize) -> f64 {
        #[target_feature(enable = "avx512f,avx512bf16")]
        fn inner(rounds: usize) {
            let mut sums = [_mm512_setzero_ps(); 16];
            // SAFETY: both types are 64 bytes in which every bit pattern is valid.
            let (x, w): (__m512bh, __m512bh) = unsafe {
                std::mem::transmute(black_box((_mm512_set1_epi32(0x3f00_3f00), _mm512_set1_epi32(0x3e80_3e80))))
            };
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbf16_ps(*sum, x, w);
                }
            }
            black_box(sums);
        }
        // SAFETY: the features are among those of the proof.
        unsafe { inner(rounds) };
        (rounds * 16 * 32) as f64
    }
}

/// Ways to read: streams that a thread reads side by side (more pages in flight than one stream's prefetcher opens),
/// and whether it asks for lines ahead. No way is the best on every CPU.
const WAYS: [(usize, bool); 3] = [(2, false), (4, false), (4, true)];

/// Parts of the buffer that are timed one by one.
const PASSES: usize = 8;

/// Bytes per second over a buffer far larger than the last-level cache, all threads.
fn read_bandwidth(pool: &Pool, budget: Duration) -> f64 {
    let mut bytes = (4 * last_level_cache()).clamp(256 << 20, 1 << 30).min(available_memory() / 4).max(16 << 20);
    let mut buffer = loop {
        match Buffer::<u64>::zeroed(bytes / 8) {
            Ok(buffer) => break buffer,
            Err(_) if bytes > 1 << 20 => bytes /= 2,
            Err(_) => return 0.0,
        }
    };
    // Pages that were never written would all be the same page of zeros.
    let words = buffer.len().div_ceil(pool.threads());
    let parts: Vec<_> = buffer.chunks_mut(words).map(Mutex::new).collect();
    pool.run(&|thread| {
        if let Some(part) = parts.get(thread) {
            part.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().step_by(4096 / 8).for_each(|word| *word = 1);
        }
    });
    drop(parts);
    let (lines, _) = buffer.as_chunks::<8>(); // a line is what memory delivers
    // Many short passes, each over the next part of the buffer: the best of them met no other work on any core.
    let mut best = 0f64;
    let start = Instant::now();
    for (pass, part) in lines.chunks_exact(lines.len() / PASSES).cycle().enumerate() {
        let begin = Instant::now();
        pool.run(&|thread| {
            black_box(read(&part[share(part.len(), pool.threads(), thread)], WAYS[pass % WAYS.len()]));
        });
        best = best.max(size_of_val(part) as f64 / begin.elapsed().as_secs_f64());
        if pass >= 2 * WAYS.len() * PASSES && start.elapsed() >= budget {
            break;
        }
    }
    best
}

/// Reads everything once in one of the [`WAYS`], with this CPU's widest loads.
fn read(lines: &[[u64; 8]], way: (usize, bool)) -> u64 {
    #[inline(always)]
    fn streams<const STREAMS: usize, const AHEAD: bool>(lines: &[[u64; 8]]) -> u64 {
        let part = lines.len() / STREAMS;
        let streams: [&[[u64; 8]]; STREAMS] = std::array::from_fn(|i| &lines[i * part..][..part]);
        let mut sums = [[0u64; 8]; STREAMS];
        for line in 0..part {
            for (sums, stream) in sums.iter_mut().zip(streams) {
                if AHEAD {
                    prefetch(stream.as_ptr().wrapping_add(line + 64));
                }
                for (sum, word) in sums.iter_mut().zip(stream[line]) {
                    *sum ^= word;
                }
            }
        }
        sums.as_flattened().iter().fold(0, |all, sum| all ^ sum)
    }
    #[inline(always)]
    fn choose(lines: &[[u64; 8]], way: (usize, bool)) -> u64 {
        match way {
            (2, _) => streams::<2, false>(lines),
            (_, false) => streams::<4, false>(lines),
            (_, true) => streams::<4, true>(lines),
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512(lines: &[[u64; 8]], way: (usize, bool), _proof: Avx512) -> u64 {
            choose(lines, way)
        }
        #[target_feature(enable = "avx2")]
        fn avx2(lines: &[[u64; 8]], way: (usize, bool), _proof: Avx2) -> u64 {
            choose(lines, way)
        }
        if let Some(proof) = Avx512::detect() {
            // SAFETY: the feature is among those of the proof.
            return unsafe { avx512(lines, way, proof) };
        }
        if let Some(proof) = Avx2::detect() {
            // SAFETY: the feature is among those of the proof.
            return unsafe { avx2(lines, way, proof) };
        }
    }
    choose(lines, way)
}

/// A hint that `line` will be read; any address will do.
#[inline(always)]
fn prefetch(_line: *const [u64; 8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the caches, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_line.cast());
    }
}

/// Bytes of the largest cache of CPU 0, or a guess.
fn last_level_cache() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    (0..8).filter_map(size).max().unwrap_or(64 << 20)
}

/// Memory that this process may take, or a guess.
fn available_memory() -> usize {
    crate::room::room().map_or(1 << 30, |room| usize::try_from(room.bytes).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_positive_and_named() {
        let pool = Pool::new(1).unwrap();
        for (isa, arithmetic) in Isa::available().into_iter().flat_map(|isa| Arithmetic::ALL.map(|a| (isa, a))) {
            let limits = measure(&pool, isa, arithmetic, 0.02);
            let rates = [limits.read_bandwidth, limits.int8_ops, limits.bf16_flops, limits.f32_flops];
            assert!(rates.into_iter().all(|rate| rate.is_finite() && rate > 0.0), "{limits:?}");
            assert!(limits.fastest_int8_ops >= limits.int8_ops && limits.fastest_bf16_flops >= limits.bf16_flops);
            let int8 = match isa {
                Isa::Scalar => "scalar int8",
                Isa::Avx2 => "avx2 vpmaddubsw",
                Isa::Avx512 | Isa::Avx512Bf16 => "avx512 vpdpbusd",
                Isa::Amx => "amx tdpbssd",
            };
            let bf16 = match (isa, arithmetic) {
                (Isa::Scalar, _) => "scalar f32",
                (Isa::Avx2, _) => "avx2 vfmadd231ps",
                (Isa::Amx, Arithmetic::Tiles) => "amx tdpbf16ps",
                (Isa::Avx512Bf16 | Isa::Amx, Arithmetic::Pairs) if Avx512Bf16::detect().is_some() => "avx512 vdpbf16ps",
                _ => "avx512 vfmadd231ps",
            };
            assert_eq!((limits.int8_kind, limits.bf16_kind), (int8, bf16), "{isa:?}, {arithmetic:?}");
        }
    }
}
