//! `/plan`: what a calculator asks.

use serde_json::{Value, json};

use crate::host::{Host, local_server, small_engine};

/// With limits, as `serve` measures them.
fn host() -> Host {
    host_with(1e12)
}

/// With `rate` operations per second, and a fiftieth of that in bytes.
fn host_with(rate: f64) -> Host {
    let limits = engine::DeviceLimits {
        read_bandwidth: rate / 50.0,
        cache_bandwidth: rate / 10.0,
        int8_ops: 2.0 * rate,
        ..engine::DeviceLimits::of_rate(rate, &[1.0; 5])
    };
    let calibration = Some(engine::Calibration::default());
    Host::with(engine::EngineOptions { calibration, limits: Some(limits), ..small_engine() }, local_server())
}

fn plan(host: &Host, query: &str) -> Value {
    let answer = host.get(&format!("/plan?{query}"));
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    answer.json()
}

#[test]
fn the_worked_example_over_http() {
    let host = host();
    let plan = plan(&host, "model=7b&flops=312T&bandwidth=2T&memory=80G&weights=fp16&prompt=1024&response=256&batch=1");
    assert_eq!(plan["floors"]["weights_ttft_ms"], 45.948718);
    assert_eq!(plan["floors"]["weights_tpot_ms"], 7.0);
    assert!(plan["floors"]["ttft_ms"].as_f64() > Some(46.5), "attention is in the floor: {plan}");
    assert!(plan["floors"]["tpot_ms"].as_f64() > Some(7.05), "and so are keys and values: {plan}");
    assert_eq!(plan["model"]["flops_per_token"], 14e9);
    assert_eq!(plan["fits"], true);
}

/// The route and the command line are two doors to one function: 200 questions by chance, to the digit.
#[test]
fn a_question_has_the_answer_of_the_command_line() {
    let host = host();
    for seed in 0..200 {
        let parameters = testing::plan_question(seed);
        let query: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let pairs = parameters.iter().map(|(name, value)| (*name, value.as_str()));
        let question = plan::Question::from_parameters(pairs).expect("a good question");
        let wanted = question.plan(&plan::Here::default()).expect("a good question").json();
        let answer = host.get(&format!("/plan?{}", query.join("&").replace('/', "%2F")));
        assert_eq!(answer.text(), wanted.to_string(), "seed {seed}: {query:?}");
    }
}

#[test]
fn the_document_has_every_parameter_and_its_values() {
    let host = host();
    let document = host.get("/openapi.json").json();
    let parameters = |method: &str| document["paths"]["/plan"][method]["parameters"].as_array().unwrap().clone();
    let names = |method: &str| -> Vec<String> {
        parameters(method).iter().map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = names("get");
    assert_eq!(all[1..], names("post")[..], "where the body is the model, it has no name");
    // Another name is answered with the same list.
    let refused = host.get("/plan?no_such=1").json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(refused.contains(&all.join(", ")), "{refused}");
    for parameter in parameters("get") {
        let name = parameter["name"].as_str().unwrap();
        let told = |value: &str| host.get(&format!("/plan?{name}={value}"));
        let schema = &parameter["schema"];
        let words: Vec<&str> = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for word in &words {
            assert_eq!(told(word).status, 200, "{name}={word}: {}", told(word).text());
        }
        if !words.is_empty() || schema["type"] != "string" {
            let answer = told("no-word");
            assert_eq!(answer.status, 400, "{name}: {}", answer.text());
            assert!(answer.text().contains(name), "{name}: {}", answer.text());
        }
    }
}

#[test]
fn what_runs_here_is_planned_by_its_own_steps() {
    let host = host();
    let asked = plan(&host, "prompt=200&response=50");
    assert_eq!(asked["model"]["name"], "lantern");
    assert_eq!(asked["machine"]["basis"], "steps of this model measured here");
    let model = host.engine.model();
    // Whole blocks of the cache that there is.
    let blocks = 250_usize.div_ceil(model.block_size);
    assert_eq!(asked["memory"]["requests"], model.num_blocks / blocks);
    let other = plan(&host, "model=qwen2.5-0.5b&machine=here&prompt=200&response=50");
    assert_ne!(other["machine"]["basis"], asked["machine"]["basis"], "{other}");
    let narrow = plan(&host, "weights=int8&prompt=200&response=50");
    assert_eq!(narrow["model"]["weights"], "int8", "and not as it is loaded: {narrow}");
}

#[test]
fn a_limit_of_a_busy_start_is_raised_by_steps() {
    // What a start measures while another program has its core: less than any machine does.
    let host = host_with(1e4);
    let before = host.get("/live/info").json();
    assert_eq!(before["limits"]["matrix_flops"], 1e4);
    host.ask("/v1/completions", &json!({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}));
    host.quiet();
    let limits = &host.get("/live/info").json()["limits"];
    for limit in ["matrix_flops", "read_bandwidth"] {
        assert!(limits[limit].as_f64() > Some(1e6), "{limits}");
    }
    for query in ["prompt=200&response=50", "prompt=1&response=1", "prompt=900&response=20&batch=8"] {
        let plan = plan(&host, query);
        assert_eq!(plan["machine"]["basis"], "steps of this model measured here");
        for phase in ["prefill", "decode"] {
            for share in ["compute_percent", "memory_percent"] {
                assert!(plan[phase][share].as_f64() <= Some(100.1), "{query}: {}", plan[phase]);
            }
        }
        for time in ["ttft_ms", "tpot_ms"] {
            let (floor, predicted) = (plan["floors"][time].as_f64(), plan[time].as_f64());
            assert!(floor <= predicted.map(|ms| ms * 1.001), "{query}: {time} {floor:?} {predicted:?}");
        }
    }
}

#[test]
fn a_picture_and_the_names() {
    let host = host();
    let svg = host.get("/plan?model=7b&machine=h100&format=svg");
    assert_eq!((svg.status, svg.header("content-type")), (200, Some("image/svg+xml")));
    assert!(svg.text().starts_with("<svg "), "{}", svg.text());
    let presets = host.get("/plan/presets").json();
    let names = |what: &str| presets[what].as_array().unwrap().iter().map(|preset| preset["name"].clone()).collect();
    let (models, machines): (Vec<Value>, Vec<Value>) = (names("models"), names("machines"));
    assert_eq!((&models[0], &machines[0]), (&"here".into(), &"here".into()));
    assert!(models.contains(&"llama-3.1-8b".into()) && machines.contains(&"h100".into()), "{presets}");
}

#[test]
fn what_is_wrong_is_400_and_named() {
    let host = host();
    let table = [
        ("colour=red", "query"),
        ("model=%2Fetc%2Fpasswd", "model"),
        ("model=lantern", "model"),
        ("machine=abacus", "machine"),
        ("prompt=0", "prompt"),
        ("prompt=many", "prompt"),
        ("prompt=100&prompt=200", "prompt"),
        ("prompt=100000", "prompt"),
        ("batch=-1", "batch"),
        ("weights=fp8", "weights"),
        ("kv=fp8", "kv"),
        ("flops=1T", "bandwidth"),
        ("users=10", "rate"),
        ("users=10&rate=2&ttft=-1", "ttft"),
        ("cached=1.5", "cached"),
        ("utilization=nan", "utilization"),
        ("price=1e30", "price"),
        ("model=7b&flops=1e30&bandwidth=1T", "flops"),
        ("thinking=1000000", "thinking"),
        ("users=10&rate=2%2Fday", "rate"),
        ("format=png", "format"),
        ("model=%00%ff", "model"),
    ];
    for (query, param) in table {
        let answer = host.get(&format!("/plan?{query}"));
        let json = answer.json();
        assert_eq!((answer.status, &json["error"]["param"]), (400, &param.into()), "{query}: {json}");
    }
}

#[test]
fn a_model_may_be_sent_as_its_configuration() {
    let host = host();
    let config = include_str!("../../../../models/lantern/config.json");
    let post = |query: &str, body: &str| {
        let answer = host.post_bytes(&format!("/plan{query}"), body.as_bytes());
        (answer.status, answer.json())
    };
    let (status, sent) = post("?machine=a100&prompt=200&response=50", config);
    assert_eq!((status, &sent["model"]["name"]), (200, &Value::from("config.json")), "{sent}");
    let known = plan(&host, "model=here&machine=a100&prompt=200&response=50");
    // What is loaded also counts the bytes of norms.
    for (part, figure) in [("floors", "ttft_ms"), ("prefill", "flops"), ("decode", "flops"), ("memory", "kv_per_token")]
    {
        assert_eq!(sent[part][figure], known[part][figure], "the served model's own configuration: {part} {figure}");
    }
    let (_, narrow) = post("?machine=a100&weights=int4&kv=int8", config);
    assert_eq!((&narrow["model"]["weights"], &narrow["model"]["kv_dtype"]), (&"int4".into(), &"int8".into()));
    for (query, body, part) in [
        ("?machine=a100&model=7b", config, "parameters of its query"),
        ("?machine=a100", "{}", "The body is not a config.json to plan with"),
        ("?machine=a100", "[]", "The body is not a config.json to plan with"),
        ("?machine=a100", "{", "JSON"),
        ("?machine=nonsense", config, "not known"),
    ] {
        let (status, answer) = post(query, body);
        assert_eq!(status, 400, "{query} {body:.20}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains(part)), "{answer}");
    }
}
