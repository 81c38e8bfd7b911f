//! `twostroke doctor`.

use tests::{run, twostroke};

#[test]
fn json_tells_features_limits_and_whether_the_bits_are_right() {
    let ran = run(&mut twostroke(&["doctor", "--json", "-t", "1"]));
    let object = ran.json();
    let problems = object["problems"].as_array().expect("a list");
    assert_eq!(ran.code, Some(if problems.is_empty() { 0 } else { 1 }), "{object}");
    for limit in ["read_bandwidth_bytes_s", "bf16_flop_s", "int8_op_s", "f32_flop_s"] {
        assert!(object["limits"][limit].as_f64().is_some_and(|value| value > 1e6), "{limit} in {object}");
    }
    let available = object["isa_available"].as_array().expect("a list");
    assert!(available.contains(&object["isa"]), "{object}");
    let checked = object["identical_bits"].as_object().expect("an object");
    assert_eq!(checked.len(), available.len() - 1, "every path but the definition itself is checked: {object}");
    assert!(checked.values().all(|same| same == true), "{object}");
    assert!(object["threads"].as_u64() <= object["cpus_allowed"].as_u64(), "{object}");
}

#[test]
fn text_ends_with_a_verdict() {
    let ran = run(&mut twostroke(&["doctor", "-t", "1"]));
    for name in ["cpu", "kernels", "cores", "caches", "memory", "limits", "models"] {
        assert!(ran.stdout.lines().any(|line| line.starts_with(name)), "{name} in {ran:?}");
    }
    let last = ran.stdout.lines().last().expect("it prints");
    assert!(last.starts_with("verdict") || last.starts_with("PROBLEM"), "{ran:?}");
}
