//! `twostroke plan`: the answers before a weight is read.

use std::fs;

use serde_json::Value;
use testing::{Scratch, lantern, plan_question};
use tests::{root, run, twostroke};

fn plan(arguments: &[&str]) -> Value {
    let ran = run(&mut twostroke(&[&["plan", "--json"], arguments].concat()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran.json()
}

#[test]
fn the_textbooks_example_to_the_digit() {
    let plan = plan(&["-m", "7b", "--flops", "312T", "--bandwidth", "2T", "--prompt", "1024"]);
    assert_eq!(plan["model"]["flops_per_token"], 14e9);
    assert_eq!(plan["floors"]["weights_ttft_ms"], 45.948718);
    assert_eq!(plan["floors"]["weights_tpot_ms"], 7.0);
}

/// 4.02 PFLOP at 116 TFLOP/s take 34.6 s: attention is two thirds of it and in the floor, and so are keys and values.
#[test]
fn floors_have_attention_and_keys() {
    let machine = ["--flops", "116T", "--bandwidth", "1.05T", "--memory", "80G"];
    let told = plan(&[&["-m", "7b", "-p", "100k", "-n", "200"], &machine[..]].concat());
    let number = |pointer: &str| told.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}"));
    let asked = number("/prefill/flops") / 116e12 * 1e3;
    assert!((number("/floors/ttft_ms") / asked - 1.0).abs() < 1e-6 && asked > 34_000.0, "{told}");
    assert!(number("/floors/ttft_ms") > 2.5 * number("/floors/weights_ttft_ms"), "{told}");
    assert!(number("/floors/tpot_ms") > 1.8 * number("/floors/weights_tpot_ms"), "{told}");
    for phase in ["prefill", "decode"] {
        let (ms, floor) = (number(&format!("/{phase}/ms")), number(&format!("/{phase}/floor_ms")));
        assert!(ms >= floor && number(&format!("/{phase}/compute_percent")) <= 100.0, "{phase}: {told}");
    }
    let text = run(&mut twostroke(&[&["plan", "-m", "7b", "-p", "100k", "-n", "200"], &machine[..]].concat())).stdout;
    assert!(text.contains("34.67 s") && text.contains("on paper, the weights alone:"), "{text}");
}

#[test]
fn models_of_today_are_known() {
    for model in
        ["qwen3-0.6b", "gemma-3-4b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3", "glm-4.5-air", "mixtral-8x7b"]
    {
        for machine in ["rtx-4090", "b200", "m2-ultra", "epyc-9654"] {
            let told = plan(&["-m", model, "--hardware", machine, "--machines-per-instance", "16"]);
            assert!(
                told["tpot_ms"].as_f64() > Some(0.0) && told["machine"]["name"] == format!("16 x {machine}"),
                "{told}"
            );
        }
    }
}

#[test]
fn a_directory_a_file_and_the_built_in_model_are_one() {
    let directory = root().join("models/lantern").display().to_string();
    let file = format!("{directory}/config.json");
    let [a, b, c] =
        [directory.as_str(), file.as_str(), "lantern"].map(|model| plan(&["-m", model, "--machine", "a100"]));
    for key in ["ttft_ms", "tpot_ms", "memory", "prefill", "decode"] {
        assert_eq!(a[key], b[key], "{key}");
        assert_eq!(a[key], c[key], "{key}");
    }
    // 4.2 million parameters in 16 bits.
    assert!((8e6..9e6).contains(&a["memory"]["weights"].as_f64().expect("bytes")), "{a}");
}

#[test]
fn narrow_weights_decode_faster_and_take_less() {
    let plan = |weights| plan(&["-m", "llama-3.1-8b", "--machine", "l40s", "--weights", weights]);
    let number = |plan: &Value, pointer: &str| {
        plan.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}"))
    };
    let [bf16, int8, int4] = ["bf16", "int8", "int4"].map(plan);
    for pointer in ["/tpot_ms", "/memory/weights"] {
        assert!(number(&bf16, pointer) > number(&int8, pointer), "{pointer}");
        assert!(number(&int8, pointer) > number(&int4, pointer), "{pointer}");
    }
    assert!(number(&bf16, "/memory/requests") < number(&int4, "/memory/requests"));
}

#[test]
fn this_machine_is_measured() {
    let plan = plan(&["-m", "lantern", "--machine", "here", "--prompt", "200", "--response", "20"]);
    assert!(plan["machine"]["bandwidth"].as_f64() > Some(1e8), "{plan}");
    assert!(plan["fits"] == true && plan["ttft_ms"].as_f64() > Some(0.0), "{plan}");
}

#[test]
fn a_fleet_and_a_picture() {
    let scratch = Scratch::new("plan");
    let svg = scratch.join("plan.svg");
    let path = svg.display().to_string();
    let ran = run(&mut twostroke(&["plan", "--users", "1000", "--rate", "2/min", "--svg", &path]));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.contains("machines?") && ran.stdout.contains("for 1,000 users (33.333 requests/s)"), "{ran:?}");
    let drawn = fs::read_to_string(&svg).expect("it was written");
    for axis in ["prompt, tokens", "batch size (concurrent requests)", "time per token, ms", "tokens per second"] {
        assert!(drawn.contains(axis), "{axis}");
    }
}

/// Speculation on a machine that reads its weights in 20 ms and could multiply them for many rows meanwhile.
#[test]
fn speculation_is_planned() {
    let machine = ["-m", "7b", "--flops", "312T", "--bandwidth", "700G", "-p", "100", "-n", "10"];
    let told = |more: &[&str]| plan(&[&machine[..], more].concat())["speculation"].clone();
    assert!(told(&[]).is_null());
    let free = told(&["--acceptance", "0.5"]);
    // 1 + .5 + .25 + ... of 16 drafts
    assert!((free["tokens_per_step"].as_f64().expect("a number") - 2.0).abs() < 0.001, "{free}");
    assert!(free["stops_at_batch"].as_u64() > Some(100) && free["drafter"].is_null(), "{free}");
    let drafted = told(&["--acceptance", "0.5,draft=0.7b"]);
    assert!(drafted["drafting_ms"].as_f64() > Some(0.0) && drafted["drafter"]["name"] == "0.7b", "{drafted}");
    assert!(drafted["gain"].as_f64() < free["gain"].as_f64() && drafted["gain"].as_f64() > Some(1.0), "{drafted}");
    let directory = root().join("models/lantern-draft").display().to_string();
    let ran = run(&mut twostroke(&["plan", "-m", "lantern", "--acceptance", &format!("0.9,draft={directory}")]));
    assert!(ran.code == Some(0) && ran.stdout.contains("with speculation?  if 90 % are accepted"), "{ran:?}");
}

/// The command line and the route are two doors to one function: questions by chance, to the digit. The route's half
/// stands in the server's tests.
#[test]
fn a_question_has_the_answer_of_the_route() {
    for seed in tests::part_of(0..200, 4) {
        let parameters = plan_question(seed);
        let pairs = parameters.iter().map(|(name, value)| (*name, value.as_str()));
        let question = plan::Question::from_parameters(pairs).expect("a good question");
        let wanted = question.plan(&plan::Here::default()).expect("a good question").json();
        let flags: Vec<String> = parameters.iter().flat_map(|(name, value)| flag(name, value)).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        // Both read from text, in which a number is its digits.
        let wanted: Value = serde_json::from_str(&wanted.to_string()).expect("JSON");
        assert_eq!(plan(&flags), wanted, "seed {seed}: {flags:?}");
    }
}

fn flag(parameter: &str, value: &str) -> [String; 2] {
    let name = match parameter {
        "machines" => "machines-per-instance",
        "rows" => "max-num-batched-tokens",
        "kv" => "kv-dtype",
        "ttft" => return ["--ttft-slo".to_string(), format!("{value}ms")],
        "tpot" => return ["--tpot-slo".to_string(), format!("{value}ms")],
        same => same,
    };
    [format!("--{name}"), value.to_string()]
}

/// Prices, energy and the machines that meet targets, in words.
#[test]
fn costs_and_targets_are_told() {
    let told = |arguments: &[&str]| {
        let ran = run(&mut twostroke(&[&["plan", "-m", "7b"], arguments].concat()));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = told(&["--machine", "a100", "--price", "2", "--utilization", "1", "--batch", "64"]);
    assert!(text.contains("output 0.17") && text.contains("at a batch of 64 and 100 % busy"), "{text}");
    let load = ["--users", "1000", "--rate", "1/min", "--price", "a100=1.5,h100=3"];
    let text = told(&[&load[..], &["--ttft-slo", "500ms", "--tpot-slo", "30ms"]].concat());
    assert!(text.contains("which machines?") && text.contains("the cheapest first"), "{text}");
    let text = told(&[&load[..], &["--ttft-slo", "1ms"]].concat());
    assert!(text.contains("none meets the targets; the best for a TTFT of 1.0 ms:"), "{text}");
}

#[test]
fn what_is_wrong_is_one_line() {
    let table: &[(&[&str], &str)] = &[
        (&["-m", "llama-9"], "known are llama-2-7b"),
        (&["-m", "no/such-model"], "not in the local cache"),
        (&["--machine", "abacus"], "known are here, a100"),
        (&["--flops", "1T"], "--bandwidth"),
        (&["--flops", "fast", "--bandwidth", "1T"], "312T"),
        (&["--machine", "h100", "--flops", "1T", "--bandwidth", "1T"], "cannot be used with"),
        (&["--prompt", "0"], "must be at least 1"),
        (&["--prompt", "200k"], "reads at most 131072"),
        (&["--users", "10"], "--rate"),
        (&["--ttft-slo", "500ms"], "--users"),
        (&["--cached", "1.5"], "--cached"),
        (&["--cached", "-1"], "--cached"),
        (&["--price", "-2"], "--price"),
        (&["--batch", "-1"], "--batch"),
        (&["--cached", "1"], "--cached: must be from 0 to below 1"),
        (&["--utilization", "0"], "--utilization: must be from 0.01 to 1"),
        (&["--price", "NaN"], "--price"),
        (&["--price", "abacus=2"], "no machine \"abacus\" is known"),
        (&["--watts", "1e30"], "--watts: must be from 0.001"),
        (&["--flops", "1e30", "--bandwidth", "1T"], "--flops: must be from 1k"),
        (&["--link", "1"], "--link"),
        (
            &["--thinking", "200k", "-p", "10"],
            "--thinking: 200266 tokens with the response; llama-3.1-8b reads at most 131072",
        ),
        (&["--users", "10", "--rate", "1e30"], "--rate: must be from 1e-9"),
        (&["--users", "10", "--rate", "often"], "2/min"),
        (&["--acceptance", "1"], "--acceptance"),
        (&["--acceptance", "0.8,draft="], "0.8,draft=0.5b"),
        (&["--acceptance", "0.8,draft=llama-9"], "--acceptance: llama-9 is not known"),
        (&["--check", "-m", "lantern", "--acceptance", "0.5"], "cannot be used with"),
        (&["--svg", "/no/such/directory/plan.svg"], "--svg"),
    ];
    for (arguments, words) in table {
        let ran = run(&mut twostroke(&[&["plan"], *arguments].concat()));
        assert_eq!(
            (ran.code, ran.stdout.as_str(), ran.stderr.lines().count()),
            (Some(2), "", 1),
            "{arguments:?}: {ran:?}"
        );
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    }
}

/// Whether the figures are near is not asserted: a machine that runs other tests measures nothing. A quick run has the
/// points that fit into a short context.
#[test]
fn predictions_are_set_beside_measurements() {
    let short = Scratch::copy_of(&lantern(), "short");
    let config = fs::read_to_string(short.join("config.json")).expect("it is there");
    fs::write(short.join("config.json"), config.replace("6144", "512")).expect("room for a model");
    let model = if tests::is_long() { "lantern".to_owned() } else { short.text().to_owned() };
    let ran = run(&mut twostroke(&["plan", "--check", "-m", &model, "-t", "1", "--json"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let points = ran.json()["points"].as_array().expect("points").clone();
    assert!(points.iter().any(|point| point["figure"] == "ttft") && points.iter().any(|point| point["batch"] == 16));
    for point in &points {
        for figure in ["measured_ms", "by_limits_ms", "by_steps_ms"] {
            assert!(point[figure].as_f64() > Some(0.0), "{point}");
        }
    }
    let ran = run(&mut twostroke(&["plan", "--check", "-m", "llama-3.1-8b"]));
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
    assert!(ran.stderr.contains("shape without weights"), "{ran:?}");
}
