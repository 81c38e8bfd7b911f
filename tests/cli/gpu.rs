//! `--device`: answers of a GPU, and what is said where none can be used. Software devices are GPUs too.

use serde_json::Value;
use tests::{run, twostroke};

/// The binary with the GPUs of the system alone: another that a test may have added compiles for long.
fn of_system(arguments: &[&str]) -> std::process::Command {
    let mut command = twostroke(arguments);
    command.env_remove("VK_ADD_DRIVER_FILES");
    command
}

/// Where the loader finds nothing.
const NO_DRIVERS: [(&str, &str); 2] = [("VK_DRIVER_FILES", "/nowhere.json"), ("VK_ADD_DRIVER_FILES", "/nowhere.json")];

#[test]
fn a_gpu_answers_as_the_cpu_does() {
    let ask = |device: &str| {
        let common = ["run", "--device", device, "-t", "1", "--no-packed-cache", "--temperature", "0.8", "--seed", "7"];
        let ran = run(&mut of_system(&[&common[..], &["--max-tokens", "24", "Tell me of the owl."]].concat()));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    };
    assert_eq!(ask("gpu"), ask("cpu"));
}

#[test]
fn doctor_lists_gpus_and_says_whether_their_bits_are_right() {
    let ran = run(&mut of_system(&["doctor", "--device", "gpu:0", "--json", "-t", "1"]));
    let object = ran.json();
    assert_eq!(object["gpu_identical_bits"], true, "{object}");
    let listed = object["gpus"].as_array().expect("a list");
    assert!(listed[0].as_str().is_some_and(|first| first.starts_with("gpu:0 ")), "{object}");
    for limit in ["read_bandwidth_bytes_s", "bf16_flop_s", "int8_op_s", "f32_flop_s"] {
        assert!(object["limits"][limit].as_f64().is_some_and(|value| value > 1e5), "{limit} in {object}");
    }
    assert_eq!(object["limits"]["int8_kind"], "dot4");
}

#[test]
fn what_cannot_be_used_is_said_by_name() {
    let said = |arguments: &[&str], environment: &[(&str, &str)]| {
        let ran = run(of_system(arguments).envs(environment.iter().copied()));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{arguments:?}: {ran:?}");
        ran.stderr
    };
    for device in ["gpu:99", "gpu:1000"] {
        let line = said(&["run", "--device", device, "Hello there"], &[]);
        assert!(line.contains("there is no GPU") && line.contains("Vulkan knows"), "{line}");
    }
    let line = said(&["run", "--device", "gpu", "Hello there"], &NO_DRIVERS);
    assert!(line.contains("--device") && line.contains("GPU"), "{line}");
    let line = said(&["run", "--device", "cuda", "Hello there"], &[]);
    assert!(line.contains("gpu:N"), "{line}");
    let line = said(&["serve", "--standby", "cpu"], &[]);
    assert!(line.contains("--standby is of use only with --device"), "{line}");
}

#[test]
fn doctor_lists_the_gpus_where_another_is_asked_for() {
    let object = run(&mut of_system(&["doctor", "--device", "gpu:99", "--json", "-t", "1"])).json();
    let listed = object["gpus"].as_array().expect("a list");
    assert!(listed.iter().any(|gpu| gpu.as_str().is_some_and(|gpu| gpu.starts_with("gpu:0 "))), "{object}");
    assert_eq!(object["gpu"], Value::Null);
}

/// A software device shows a kernel 128 MiB of a buffer.
#[test]
fn rows_that_a_gpu_does_not_see_at_once_are_refused_with_what_to_give() {
    let ran = run(&mut of_system(&["serve", "--device", "gpu", "--max-num-batched-tokens", "65535", "--port", "0"]));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("rows are ") && ran.stderr.contains("--max-num-batched-tokens"), "{ran:?}");
}

/// The CPU, and doctor tells what is wrong beside all else.
#[test]
fn where_there_is_none_auto_takes_the_cpu() {
    let common = ["-t", "1", "--no-packed-cache", "--temperature", "0", "--max-tokens", "4", "Hello there"];
    let mut auto = twostroke(&[&["run", "--device", "auto"], &common[..]].concat());
    assert_eq!(run(auto.envs(NO_DRIVERS)).code, Some(0));
    let ran = run(twostroke(&["doctor", "--device", "gpu", "--json", "-t", "1"]).envs(NO_DRIVERS));
    let object = ran.json();
    assert_eq!((ran.code, &object["gpu_identical_bits"]), (Some(1), &Value::Null), "{object}");
    let problems = object["problems"].as_array().expect("a list");
    assert!(problems.iter().any(|problem| problem.as_str().is_some_and(|line| line.contains("GPU"))), "{object}");
}
