//! What both phases cost beside what the machine allows, as people read it. The arithmetic is [`roofline`]; limits
//! are measured on this machine: at a start, within the hour before where that went well, or while a chat waits.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bench::LIMITS_SECONDS;
pub(crate) use bench::{limits_json, not_sure};
use engine::DeviceChoice;
use kernels::limits::{Doubt, Limits, MeasureError, measure_while};
use kernels::memory_limits::Limit;
use kernels::threads::{Pool, ThreadError};
use kernels::{AccumulationOrder, CpuOptions, Device, Isa};
pub(crate) use plan::units::{bandwidth, bytes, duration, operations, percent, rate, rounded};
pub(crate) use roofline::{Bound, Demands, LimitShares, NOT_KNOWN, PassWork, Peaks, peak};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::flags::ModelFlags;
use crate::{kept, models};

/// Whether limits are measured, where an earlier start has measured them well within the hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Now,
    IfOld,
}

/// Of which threads, arithmetic and device.
type Key = (usize, AccumulationOrder, DeviceChoice);

/// Those that were measured in the life of the process, at most once.
static MEASURED: Mutex<Option<(Key, Limits)>> = Mutex::new(None);

fn measured() -> MutexGuard<'static, Option<(Key, Limits)>> {
    MEASURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limits of this machine with `threads` threads: measured once in the life of the process at most, and the highest
/// that was measured well, now or at an earlier start. `arithmetic`: what is computed; `None`: what is fastest here.
/// `directory`: where measurements are kept; `None`: nowhere.
pub(crate) fn limits(measure: Measure, on: kept::On, directory: Option<&Path>) -> Result<Limits, Failure> {
    let limits = limits_while(measure, on, directory, &|| true)?;
    Ok(limits.expect("measured to its end"))
}

/// As [`limits`], as long as `goes_on`, which stays false once it was: `None` if that ends the measurement, and then nothing
/// is kept of it.
fn limits_while(
    measure: Measure,
    on: kept::On,
    directory: Option<&Path>,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Limits>, Failure> {
    let key = (on.threads, on.arithmetic, on.device);
    // Of GPUs nothing is kept: a measurement takes a second, and a key would have to know the driver.
    let directory = directory.filter(|_| on.device == DeviceChoice::Cpu);
    let mut measured = measured();
    if let Some((_, limits)) = measured.as_ref().filter(|(with, _)| *with == key) {
        return Ok(Some(*limits));
    }
    // A clock before 1970 is one that was not set.
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let recent = directory.filter(|_| measure == Measure::IfOld);
    let limits = match recent.and_then(|directory| kept::recent_limits(directory, on, unix_s)) {
        Some(limits) => limits,
        None => {
            let Some(now) = measure_now(on, goes_on)? else { return Ok(None) };
            directory.map_or(now, |directory| kept::keep_limits(directory, on, &now, unix_s))
        }
    };
    *measured = Some((key, limits));
    Ok(Some(limits))
}

/// As [`limits`], of what these flags say.
pub(crate) fn limits_of(flags: &ModelFlags) -> Result<Limits, Failure> {
    limits(Measure::IfOld, kept::On::of(flags), models::packed_cache(flags).as_deref())
}

/// The same while nothing else is to be done: see [`limits_while`].
pub(crate) fn limits_in_peace(
    flags: &ModelFlags,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Limits>, Failure> {
    limits_while(Measure::IfOld, kept::On::of(flags), models::packed_cache(flags).as_deref(), goes_on)
}

/// Those that are known without a measurement: of this process, or what earlier starts have measured well, however long
/// ago. Waits while they are measured.
pub(crate) fn known_limits(flags: &ModelFlags) -> Option<Limits> {
    let on = kept::On::of(flags);
    let key = (on.threads, on.arithmetic, on.device);
    let measured = measured().filter(|(of, _)| *of == key).map(|(_, limits)| limits);
    let directory = models::packed_cache(flags).filter(|_| on.device == DeviceChoice::Cpu);
    measured.or_else(|| kept::limits(&directory?, on))
}

/// What earlier starts have measured counts no more.
pub(crate) fn forget_limits(flags: &ModelFlags) {
    if let Some(directory) = models::packed_cache(flags) {
        kept::forget_limits(&directory, kept::On::of(flags));
    }
}

/// A fresh measurement: a virtual machine's limits change while it runs.
fn measure_now(on: kept::On, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<Option<Limits>, Failure> {
    let kept::On { threads, arithmetic, device } = on;
    let host = CpuOptions { threads: Some(threads), arithmetic: Some(arithmetic), ..CpuOptions::default() };
    if let Some(gpu) = device.open(host).map_err(Failure::usage)? {
        return gpu.limits(LIMITS_SECONDS).map(Some).map_err(unmeasured);
    }
    let measure = |pool: Pool| measure_while(&pool, Isa::best(), arithmetic, LIMITS_SECONDS, goes_on);
    let pool = Pool::new(threads).map_err(MeasureError::from);
    pool.and_then(|pool| Ok(measure(pool)?)).map_err(unmeasured)
}

/// A measurement that found no threads, or no memory.
pub(crate) fn unmeasured(error: MeasureError) -> Failure {
    match error {
        MeasureError::Threads(ThreadError::Spawn(_)) | MeasureError::Memory(_) => models::without_memory(&error),
        _ => Failure::usage(error),
    }
}

/// A configured limit on memory: which, how much, where; `null` for the free memory of the machine.
pub(crate) fn memory_limit_json(limit: Option<&Limit>) -> Value {
    let kind = match limit {
        None | Some(Limit::Machine) => return Value::Null,
        Some(Limit::Group { .. }) => "control group",
        Some(Limit::AddressSpace { .. }) => "address space",
        Some(Limit::Data { .. }) => "data",
        Some(Limit::Device { .. }) => "device",
    };
    json!({ "kind": kind, "bytes": limit.and_then(Limit::bytes), "source": limit.map(Limit::source) })
}

/// What bounds reading weights of `weight_bytes`: `45.5 GB/s read`, `78.3 GB/s read from cache`.
pub(crate) fn read_limit(limits: &Limits, weight_bytes: usize) -> String {
    let from = if limits.holds(weight_bytes) { " from cache" } else { "" };
    format!("{} read{from}", bandwidth(limits.bandwidth_for(weight_bytes)))
}

/// One phase of one answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub(crate) tokens: usize,
    pub(crate) seconds: f64,
    pub(crate) work: PassWork,
    /// Where limits are known.
    pub(crate) shares: Option<LimitShares>,
}

impl Phase {
    pub(crate) fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens as f64 / self.seconds } else { 0.0 }
    }

    pub(crate) fn json(&self) -> Value {
        let mut phase = json!({
            "tokens": self.tokens,
            "ms": rounded(self.seconds * 1e3),
            "tok_s": rounded(self.rate()),
            "flops": self.work.flops().round(),
            "bytes": self.work.bytes.round(),
            "intensity": rounded(self.work.intensity()),
        });
        if let Some(shares) = &self.shares {
            phase["limit_percent"] = rounded(shares.of_limit() * 100.0).into();
            phase["compute_percent"] = rounded(shares.compute * 100.0).into();
            phase["memory_percent"] = rounded(shares.memory * 100.0).into();
            phase["bound_by"] = shares.bound().to_string().into();
        }
        phase
    }
}

/// Both phases of an answer: the line under it, with shares of limits where those are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) prefill: Phase,
    pub(crate) decode: Phase,
    pub(crate) cached_tokens: usize,
    /// The weights stay in the last level of cache, so that its bandwidth is the limit, and not that of memory.
    pub(crate) in_cache: bool,
    /// Why the limits are not sure.
    pub(crate) doubt: Option<Doubt>,
}

impl Figures {
    /// What the phase that took longer was bound by.
    pub(crate) fn bound(&self) -> Option<Bound> {
        let longer = if self.prefill.seconds > self.decode.seconds { &self.prefill } else { &self.decode };
        longer.shares.as_ref().map(LimitShares::bound)
    }

    /// Tokens a second, and of the limit.
    fn speed(&self, phase: &Phase) -> [String; 2] {
        let share = phase.shares.as_ref().map_or_else(String::new, |shares| {
            let cache = if self.in_cache && shares.bound() == Bound::Memory { ", read from cache" } else { "" };
            format!("{} of limit{cache}", percent(shares.of_limit()))
        });
        [rate(phase.rate()), share]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { prefill, decode, cached_tokens, .. } = self;
        write!(f, "prefill {} tok", prefill.tokens)?;
        if *cached_tokens > 0 {
            write!(f, " (+ {cached_tokens} cached)")?;
        }
        let [rate, share] = self.speed(prefill);
        let comma = if share.is_empty() { "" } else { ", " };
        write!(f, " in {} ({rate}{comma}{share})", duration(prefill.seconds))?;
        if decode.tokens > 0 {
            let [rate, share] = self.speed(decode);
            let share = if share.is_empty() { share } else { format!(" ({share})") };
            write!(f, " · decode {rate}{share}")?;
        }
        match self.bound() {
            Some(bound) => write!(f, " · bound by {bound}{}", not_sure(self.doubt)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(tokens: usize, seconds: f64, compute: f64, memory: f64) -> Phase {
        Phase { tokens, seconds, work: PassWork::default(), shares: Some(LimitShares { compute, memory }) }
    }

    #[test]
    fn the_line_under_an_answer() {
        let figures = Figures {
            prefill: phase(812, 0.0963, 0.613, 0.08),
            decode: phase(413, 10.0, 0.02, 0.876),
            cached_tokens: 0,
            in_cache: false,
            doubt: None,
        };
        let line = "prefill 812 tok in 96 ms (8.4k tok/s, 61 % of limit) · decode 41.3 tok/s (88 % of limit) · bound by memory";
        assert_eq!(figures.to_string(), line);
        let one_token = Figures { decode: phase(0, 0.0, 0.0, 0.0), cached_tokens: 4096, ..figures };
        let line = "prefill 812 tok (+ 4096 cached) in 96 ms (8.4k tok/s, 61 % of limit) · bound by compute";
        assert_eq!(one_token.to_string(), line);
        let small = Figures { decode: phase(1000, 1.0, 0.2, 0.8), in_cache: true, ..figures };
        assert!(small.to_string().contains("decode 1.0k tok/s (80 % of limit, read from cache)"), "{small}");
        let unsure = Figures { doubt: Some(Doubt::Spread(0.5)), ..figures };
        let unknown = |phase: Phase| Phase { shares: None, ..phase };
        let plain = Figures { prefill: unknown(figures.prefill), decode: unknown(figures.decode), ..unsure };
        assert_eq!(plain.to_string(), "prefill 812 tok in 96 ms (8.4k tok/s) · decode 41.3 tok/s");
        let words = "bound by memory; not sure: measurements were 50 % apart, so something else used the machine";
        assert!(unsure.to_string().ends_with(words), "{unsure}");
    }
}
