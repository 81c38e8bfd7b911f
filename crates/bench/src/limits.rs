//! The machine's limits beside a measurement.

use kernels::Device;
use kernels::limits::{Doubt, Limits, MeasureError};
use roofline::Peaks;
use serde_json::{Value, json};

/// Seconds that one measurement of the machine's limits takes.
pub const LIMITS_SECONDS: f64 = 0.4;

/// What work of one kind may have of the machine, measured now: other tenants of a shared host take their part, now
/// more, now less. `compute`: operations per second of that kind.
pub(crate) fn peaks_now(device: &impl Device, compute: impl Fn(&Limits) -> f64) -> Result<Peaks, MeasureError> {
    let limits = device.limits(LIMITS_SECONDS)?;
    let matrix = compute(&limits);
    Ok(Peaks { matrix, attention: matrix, bandwidth: limits.read_bandwidth })
}

/// Of two measurements on one machine the higher of each limit: whatever disturbs a measurement lowers it. One that is
/// not sure counts beside one that is as little as one that was not made.
pub(crate) fn higher(a: &Limits, b: &Limits) -> Limits {
    match (a.doubt(), b.doubt()) {
        (Some(_), None) => return *b,
        (None, Some(_)) => return *a,
        _ => {}
    }
    Limits {
        read_bandwidth: a.read_bandwidth.max(b.read_bandwidth),
        cache_bandwidth: a.cache_bandwidth.max(b.cache_bandwidth),
        int8_ops: a.int8_ops.max(b.int8_ops),
        bf16_flops: a.bf16_flops.max(b.bf16_flops),
        f32_flops: a.f32_flops.max(b.f32_flops),
        fastest_int8_ops: a.fastest_int8_ops.max(b.fastest_int8_ops),
        fastest_bf16_flops: a.fastest_bf16_flops.max(b.fastest_bf16_flops),
        ..*a
    }
}

/// The limits as JSON.
pub fn limits_json(limits: &Limits) -> Value {
    json!({
        "read_bandwidth_bytes_s": limits.read_bandwidth,
        "cache_bandwidth_bytes_s": limits.cache_bandwidth,
        "cache_bytes": limits.cache_bytes,
        "bf16_flop_s": limits.bf16_flops,
        "bf16_kind": limits.bf16_kind,
        "int8_op_s": limits.int8_ops,
        "int8_kind": limits.int8_kind,
        "f32_flop_s": limits.f32_flops,
        "fastest_bf16_flop_s": limits.fastest_bf16_flops,
        "fastest_bf16_kind": limits.fastest_bf16_kind,
        "fastest_int8_op_s": limits.fastest_int8_ops,
        "fastest_int8_kind": limits.fastest_int8_kind,
        "not_sure": limits.doubt().map(|doubt| doubt.to_string()),
    })
}

/// Suffix of figures whose limits are uncertain: `; not sure: ...`, or nothing.
pub fn not_sure(doubt: Option<Doubt>) -> String {
    doubt.map_or_else(String::new, |doubt| format!("; not sure: {doubt}"))
}
