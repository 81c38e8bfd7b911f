//! Plans worked out by hand: what each figure is, in numbers that can be checked on paper.

use kernels::{KvDtype, WeightClass};
use model::ModelConfig;
use plan::{Ask, Cap, Deployment, DivisionVerdict, NamedModel, Simulated, SpeculationModel, SpeculationPlan, Users};
use roofline::{Basis, Bound, Machine, ModelShape};
use scheduler::CostModel;
use scheduler::cost::{Knot, Terms};
use serde_json::Value;

fn ask(prompt: usize, response: usize, batch: usize) -> Ask {
    Ask { prompt, response, batch, ..Ask::default() }
}

fn deployment(model: &str, machine: Machine) -> Deployment {
    let model = NamedModel::find(model).unwrap_or_else(|| panic!("{model} is known"));
    Deployment::new(&model, WeightClass::Bf16, KvDtype::Bf16, machine)
}

/// What `config` says, with one more field.
fn configured(config: &str) -> ModelShape {
    ModelConfig::parse(config).unwrap_or_else(|error| panic!("{error}: {config}")).shape()
}

#[track_caller]
fn close(got: f64, wanted: f64) {
    assert!((got - wanted).abs() <= wanted.abs() * 1e-9, "{got} is not {wanted}");
}

/// The textbook's example: a model of 7 billion parameters in 16 bits on an A100 of 312 TFLOP/s and 2 TB/s.
#[test]
fn seven_billion_parameters_on_an_a100() {
    let deployment = deployment("7b", Machine::given(312e12, 2e12, Some(80e9)));
    let plan = deployment.plan(&ask(1024, 256, 1));
    let json = plan.json();
    // Two operations per parameter: 14 GFLOP per token.
    assert_eq!(json["model"]["flops_per_token"], 14e9);
    // 1,024 tokens x 14 GFLOP / 312 TFLOP/s = 45.95 ms: about 46 ms.
    let on_paper = 1024.0 * 14e9 / 312e12;
    close(plan.deployment.prefill_weights(1024), on_paper);
    assert_eq!(json["floors"]["weights_ttft_ms"], 45.948718);
    assert_eq!(plan::units::duration(on_paper), "46 ms");
    // 14 GB / 2 TB/s = 7 ms.
    assert_eq!(plan.memory.weights, 14e9);
    assert_eq!(json["floors"]["weights_tpot_ms"], 7.0);
    // The floors have attention, keys and values besides: 2 % and 1 % more. Of given figures all is reached, so the
    // predictions are the floors.
    close(plan.prefill.floor, plan.prefill.flops / 312e12);
    assert!(plan.prefill.floor > on_paper && plan.prefill.floor < 1.03 * on_paper, "{json}");
    let keys = 2.0 * plan.deployment.demands.kv_bytes_per_token as f64 / 2.0 * 1152.0;
    close(json["floors"]["tpot_ms"].as_f64().expect("a number") / 1e3, ((14e9 + keys) / 2e12 * 1e9).round() / 1e9);
    assert!((plan.times.ttft / plan.prefill.floor - 1.0).abs() < 1e-6, "{json}");
    assert!((plan.times.tpot * 255.0 / plan.decode.floor - 1.0).abs() < 1e-6, "{json}");
    assert_eq!((plan.prefill.bound, plan.decode.bound), (Bound::Compute, Bound::Memory));
}

#[test]
fn a_known_model_is_counted_by_its_shape() {
    let shape = NamedModel::find("llama-3.1-8b").expect("known").shape;
    // 32 layers of 4096 x (4096 + 1024 + 1024 + 4096) for attention and 3 x 4096 x 14336 for the MLP; a table of
    // 128,256.
    assert_eq!(shape.layer_parameters, 32 * (4096 * 10240 + 3 * 4096 * 14336));
    assert_eq!(shape.parameters(), shape.layer_parameters + 2 * 128_256 * 4096);
    let demands = shape.demands(WeightClass::Bf16, KvDtype::Bf16);
    // A key and a value of 8 heads of 128 in each of 32 layers, two bytes each.
    assert_eq!(demands.kv_bytes_per_token, 2 * 32 * 8 * 128 * 2);
    // int8 has two scales of 4 bytes for each head besides.
    assert_eq!(shape.demands(WeightClass::Int8, KvDtype::Int8).kv_bytes_per_token, 32 * 8 * (2 * 128 + 8));
    // int4: 4 bits and a ratio of 8 for 32 weights; int8 stay the head, keys and values of all layers, the first
    // layer's down and the last one's MLP.
    let int4 = shape.demands(WeightClass::Int4, KvDtype::Bf16).weight_bytes;
    let wide = 32 * 4096 * 2048 + 4 * 4096 * 14336;
    assert_eq!(int4 as u64, (shape.layer_parameters - wide) * 17 / 32 + wide + 128_256 * 4096);
    // The simulator has the same figures, and the table of embeddings beside what a pass reads.
    let simulated = Simulated::of(&shape, WeightClass::Int4, KvDtype::Int8);
    assert_eq!(simulated.cost.weight_bytes, int4 as f64);
    assert_eq!(simulated.resident_bytes, int4 as f64 + 128_256.0 * 4096.0);
    assert_eq!(simulated.cost.kv_bytes, (32 * 8 * (2 * 128 + 8)) as f64);
}

#[test]
fn memory_holds_weights_and_whole_blocks() {
    let deployment = deployment("llama-3.1-8b", Machine::named("h100").expect("known"));
    let memory = deployment.memory(&ask(1000, 1, 1));
    // 1,001 tokens are 32 blocks of 32: 1,024 tokens of 128 KiB.
    assert_eq!(memory.kv_per_request, 1024.0 * 131_072.0);
    // 80 GB, of which 12 % stay free, less 16.06 GB of weights, hold 404 of them.
    let left = 80e9 * 0.88 - 2.0 * 8_030_000_000.0;
    assert_eq!(memory.requests, Some(404));
    assert!((memory.left.expect("known") / left - 1.0).abs() < 1e-3, "{memory:?}");
    assert_eq!((memory.fits(404), memory.fits(405)), (Some(true), Some(false)));
}

#[test]
fn what_does_not_fit_is_said() {
    let a100 = || Machine::named("a100").expect("known");
    let one = deployment("llama-3.1-70b", a100()).plan(&ask(1024, 256, 1));
    assert_eq!(one.memory.fits(1), Some(false));
    assert!(one.to_string().contains("no: the weights take 141 GB, and a100 has 80 GB"), "{one}");
    let four = deployment("llama-3.1-70b", a100().times(4)).plan(&ask(1024, 256, 1));
    assert_eq!(four.memory.fits(1), Some(true));
    let unknown = deployment("llama-3.1-70b", Machine::given(1e15, 1e12, None)).plan(&ask(1024, 256, 1));
    assert_eq!(unknown.memory.fits(1), None);
}

/// From the batch on at which the weights take as long to multiply as to read, a larger one gains nothing.
#[test]
fn the_knee_is_where_both_limits_meet() {
    // 2 P operations a row at 312 T/s against 2 P bytes at 2 TB/s meet at 156.
    let deployment = deployment("7b", Machine::given(312e12, 2e12, Some(80e9)));
    assert_eq!(deployment.knee(), Some(157));
    let rate = |batch: usize| batch as f64 / deployment.step(batch, 1.0);
    assert!(rate(150) > 1.8 * rate(75), "below it a larger batch pays");
    assert!(rate(400) < 1.01 * rate(200), "above it none does");
}

#[test]
fn a_mixture_holds_all_experts_and_reads_some() {
    let shape = configured(
        r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "num_local_experts": 8,
            "num_experts_per_tok": 2}"#,
    );
    // Two layers of eight experts of three matrices; a token goes to two.
    let expert = 3 * 64 * 32;
    assert_eq!(shape.expert_parameters, 2 * 8 * expert);
    assert_eq!(shape.layer_parameters - shape.active_parameters, 2 * 6 * expert);
    let demands = shape.demands(WeightClass::Bf16, KvDtype::Bf16);
    let rest = (demands.weight_bytes - demands.expert_bytes) as f64;
    close(demands.bytes_of_pass(1.0), rest + 0.25 * demands.expert_bytes as f64);
    close(demands.bytes_of_pass(2.0), rest + (1.0 - 0.75 * 0.75) * demands.expert_bytes as f64);
    // So one request decodes faster than the weights could be read, and a batch does not.
    let deployment = Deployment::new(
        &NamedModel::new("test", shape),
        WeightClass::Bf16,
        KvDtype::Bf16,
        Machine::given(1e15, 1e9, None),
    );
    let all = demands.weight_bytes as f64 / 1e9;
    assert!(deployment.step(1, 1.0) < 0.6 * all && deployment.step(64, 1.0) >= 0.99 * all);
    // Memory for a quarter of them: the rest is on disk, and a token reads two of eight of it.
    let experts = demands.expert_bytes as f64;
    let ask = Ask { prompt: 8, response: 8, ..Ask::default() };
    let part = Deployment { expert_memory: Some(experts / 4.0), ..deployment.clone() };
    close(deployment.memory(&ask).weights - part.memory(&ask).weights, 0.75 * experts);
    let json = part.plan(&ask).json();
    close(json["experts"]["on_disk"].as_f64().unwrap(), 0.75 * experts);
    close(json["experts"]["read_by_token"].as_f64().unwrap(), 0.25 * 0.75 * experts);
    assert!(part.plan(&ask).to_string().contains("of experts on disk"));
    let plenty = Deployment { expert_memory: Some(2.0 * experts), ..deployment.clone() };
    close(plenty.memory(&ask).weights, deployment.memory(&ask).weights);
}

#[test]
fn a_window_bounds_what_is_read_and_not_what_is_kept() {
    let config = |window: &str| {
        format!(
            r#"{{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 32,
            "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 4096, "sliding_window": {window}}}"#
        )
    };
    let (all, windowed) = (configured(&config("null")), configured(&config("256")));
    assert_eq!(windowed.windows, [(Some(256), 1), (None, 1)]);
    let demands = |shape: &ModelShape| shape.demands(WeightClass::Bf16, KvDtype::Bf16);
    assert_eq!(demands(&all).kv_bytes_per_token, demands(&windowed).kv_bytes_per_token);
    let read = |shape: &ModelShape| {
        let demands = demands(shape);
        demands.decode(1, 1, 2048.0).bytes - demands.bytes_of_pass(1.0)
    };
    // One layer of two sees 256 of 2,048 tokens.
    close(read(&windowed) / read(&all), (2048.0 + 256.0) / 2.0 / 2048.0);
}

#[test]
fn a_prompt_in_chunks_pays_for_the_weights_each_time() {
    let machine = |rows: usize| Machine { rows, ..Machine::given(1e18, 1e12, None) };
    // So much arithmetic that only reading counts: 14 GB a pass.
    let ttft = |rows: usize| deployment("7b", machine(rows)).ttft(1024, 0, 0.0);
    for (rows, passes) in [(1024, 1.0), (512, 2.0), (1000, 2.0), (256, 4.0)] {
        assert!((ttft(rows) / (passes * 0.014) - 1.0).abs() < 0.01, "{rows} rows: {}", ttft(rows));
    }
}

#[test]
fn a_batch_shares_the_weights_and_not_the_keys() {
    let deployment = deployment("7b", Machine::given(1e18, 2e12, None));
    let keys = 131_072.0 * 1000.0 / 2e12;
    close(deployment.step(1, 1000.0), 0.007 + keys);
    close(deployment.step(10, 1000.0), 0.007 + 10.0 * keys);
    // The floor has both.
    close(deployment.decode_floor(1, 1000.0), 0.007 + keys);
    close(deployment.decode_weights(), 0.007);
}

/// Dividing the phases wins what others' prompts took of the batch, and loses a part of a machine for each pool.
#[test]
fn phases_are_divided_where_the_target_keeps_batches_small() {
    let deployment = deployment("7b", Machine::given(312e12, 2e12, Some(80e9)));
    let verdict = |users, tpot| {
        let asked = Users { users, rate: 0.01, ttft: None, tpot };
        let ask = Ask { prompt: 2000, response: 100, users: Some(asked), ..Ask::default() };
        let plan = deployment.plan(&ask);
        let fleet = plan.fleet.expect("it fits");
        let json = &plan.json()["fleet"]["apart"];
        assert_eq!(json["pays"], fleet.division.verdict.pays(), "{json}");
        let words = json["why"].as_str().expect("words");
        assert!(words.starts_with(if fleet.division.verdict.pays() { "pays: " } else { "does not pay: " }), "{words}");
        let text = plan.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "the text says what the JSON says: {words}");
        (fleet.division, fleet)
    };
    let (strict, fleet) = verdict(20_000.0, Some(0.012));
    assert_eq!(strict.verdict, DivisionVerdict::Fewer, "{strict:?} {fleet:?}");
    assert!(strict.batch > fleet.batch && strict.machines < fleet.machines, "{strict:?} {fleet:?}");
    close(strict.busy[0], 200.0 * deployment.ttft(2000, 0, 0.0));
    close(strict.bytes_per_prompt, 2000.0 * 131_072.0);
    let table = [
        (50.0, Some(0.012), DivisionVerdict::OneMachine),
        (20_000.0, None, DivisionVerdict::NothingToWin),
        (20_000.0, Some(0.005), DivisionVerdict::OutOfReach),
        (20_000.0, Some(0.0075), DivisionVerdict::MeetsTarget),
    ];
    for (users, tpot, expected) in table {
        let (division, fleet) = verdict(users, tpot);
        assert_eq!(division.verdict, expected, "{users} users, {tpot:?}: {division:?} {fleet:?}");
    }
}

/// 0.1 s of prefill and 99 steps of about 7 ms in batches of 16.
#[test]
fn a_fleet_is_as_large_as_the_time_of_its_requests() {
    let deployment = deployment("7b", Machine::given(312e12, 2e12, Some(20e9)));
    let request = Ask { prompt: 2000, response: 100, ..Ask::default() };
    let fits = deployment.memory(&request).requests.expect("known");
    let asked = |tpot| Ask { users: Some(Users { users: 1000.0, rate: 0.01, ttft: None, tpot }), ..request };
    let fleet = deployment.plan(&asked(None)).fleet.expect("it fits");
    assert_eq!((fleet.batch as u64, fleet.cap), (fits, Cap::Memory));
    let prefill = deployment.ttft(2000, 0, 0.0);
    let step = deployment.step(fleet.batch, 2050.0);
    let each = prefill + 99.0 * step / fleet.batch as f64;
    close(fleet.per_machine, 1.0 / each);
    close(fleet.busy, 10.0 * each);
    close(fleet.division.busy[0] + fleet.division.busy[1], fleet.busy);
    assert_eq!(fleet.machines, (fleet.busy / 0.7).ceil() as u64);
    // A stream waits for the prompts of the others.
    close(fleet.tpot, step + fleet.batch as f64 * prefill / 99.0);
    let strict = deployment.plan(&asked(Some(0.015))).fleet.expect("it fits");
    assert!(strict.tpot <= 0.015 && strict.batch < fleet.batch && strict.machines >= fleet.machines, "{strict:?}");
    assert_eq!((strict.cap, strict.misses_target), (Cap::Target, false));
    let impossible = deployment.plan(&asked(Some(0.005))).fleet.expect("it fits");
    assert!(impossible.misses_target && impossible.batch == 1);
}

/// The same figures reach people in words.
#[test]
fn the_answers_come_first() {
    let plan = deployment("7b", Machine::given(312e12, 2e12, Some(80e9))).plan(&ask(1024, 256, 1));
    let text = plan.to_string();
    for line in [
        "fits?              yes: 14 GB of weights in 80 GB",
        "how fast?          first token after 47 ms, then one each 7.1 ms (141 tok/s)",
        "what limits?       decode, 97 % of the answer's time (prefill is bound by compute, decode by memory)",
        "on paper, the weights alone: 14 GFLOP a token, 46 ms for the prompt, 7.0 ms for a token of one request",
        "7b on 312 TFLOP/s, 2 TB/s: bf16 weights, bf16 KV cache",
        "by the given peaks, assumed 100 % efficient",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(plan.svg().starts_with("<svg ") && plan.svg().contains("prompt, tokens"));
}

/// A floor is what nothing can beat, and the share of the limit is the floor over the time.
#[test]
fn no_prediction_is_below_its_floor_and_no_share_above_one() {
    let given = Machine::given(116e12, 1.05e12, Some(80e9));
    let long = deployment("7b", given).plan(&ask(100_000, 200, 1));
    // 4.02 PFLOP at 116 TFLOP/s are 34.6 s, of which the weights are a third.
    close(long.prefill.floor, long.prefill.flops / 116e12);
    assert!((34.0..35.5).contains(&long.prefill.floor), "{long}");
    assert!(long.deployment.prefill_weights(100_000) < 0.4 * long.prefill.floor, "{long}");
    assert!(long.decode.floor > 1.8 * 199.0 * long.deployment.decode_weights(), "keys and values as well: {long}");
    let machines: Vec<Machine> = Machine::known().chain([Machine::given(116e12, 1.05e12, Some(80e9))]).collect();
    for (name, shape) in ModelShape::known() {
        let model = NamedModel::new(name, shape);
        for machine in &machines {
            for (weights, kv) in [
                (WeightClass::Bf16, KvDtype::Bf16),
                (WeightClass::Int8, KvDtype::Int8),
                (WeightClass::Int4, KvDtype::Bf16),
            ] {
                let deployment = Deployment::new(&model, weights, kv, machine.clone());
                for (prompt, batch) in [(1, 1), (7, 3), (300, 1), (3000, 17), (30_000, 200)] {
                    let plan = deployment.plan(&ask(prompt, 50, batch));
                    for (phase, profile) in [("prefill", &plan.prefill), ("decode", &plan.decode)] {
                        let at = format!("{name} on {}, {weights:?}, {prompt} x {batch}: {phase}", machine.name);
                        assert!(profile.seconds >= profile.floor * (1.0 - 1e-9), "{at} {profile:?}");
                        assert!(profile.shares.expect("known").of_limit() <= 1.0 + 1e-9, "{at} {profile:?}");
                    }
                    let share = plan.prefill.floor / plan.times.ttft_alone;
                    assert!(
                        (plan.prefill.shares.expect("known").of_limit() - share).abs() < 1e-9,
                        "{name} {}",
                        machine.name
                    );
                    let share = plan.decode.floor / plan.decode.seconds;
                    assert!(
                        (plan.decode.shares.expect("known").of_limit() - share).abs() < 1e-9,
                        "{name} {}",
                        machine.name
                    );
                }
            }
        }
    }
}

/// Steps that were measured and are faster than the limits were measured beside other programs: the lower bound stands, and
/// a share is not known.
#[test]
fn a_prediction_below_the_floor_is_the_floor() {
    let fast = deployment("7b", Machine::given(312e12, 2e12, Some(80e9)));
    let machine = Machine { basis: Basis::Steps, bandwidth: 1e12, ..fast.machine.clone() };
    let plan = Deployment { machine, ..fast }.plan(&ask(1024, 256, 1));
    close(plan.decode.floor, plan.decode.seconds);
    let json = plan.json();
    assert_eq!(
        (&json["machine"]["bandwidth"], &json["decode"]["memory_percent"]),
        (&1e12.into(), &Value::Null),
        "{json}"
    );
    assert!(json["machine"]["not_sure"].as_str().is_some_and(|why| why.contains("lower bounds")), "{json}");
    assert_eq!((plan.decode.shares, plan.decode.bound), (None, Bound::Memory), "{plan}");
    assert!(plan.to_string().contains("memory, not known (machine busy)"), "{plan}");
}

/// Of tiles' peak models reach very different shares.
#[test]
fn a_prediction_from_the_peak_of_tiles_is_not_sure() {
    let given = deployment("7b", Machine::given(312e12, 2e12, Some(80e9)));
    for (basis, has_tiles, unsure) in
        [(Basis::Limits, true, true), (Basis::Limits, false, false), (Basis::Steps, true, false)]
    {
        let machine = Machine { basis, has_tiles, ..given.machine.clone() };
        let doubt = Deployment { machine, ..given.clone() }.plan(&ask(1024, 256, 1)).doubt();
        assert_eq!(doubt.as_ref().is_some_and(|why| why.contains("tiles")), unsure, "{basis:?}: {doubt:?}");
    }
}

/// What int8 brings to prefill on machines that multiply it faster.
#[test]
fn int8_and_int4_have_the_int8_peak() {
    for (name, times) in [("a100", 2.0), ("h100", 2.0), ("rtx-4090", 4.0), ("m2-ultra", 1.0)] {
        let machine = || Machine::named(name).expect("known");
        let model = NamedModel::find("7b").expect("a count");
        let ttft = |weights| Deployment::new(&model, weights, KvDtype::Bf16, machine()).ttft(2048, 0, 0.0);
        for narrow in [WeightClass::Int8, WeightClass::Int4] {
            let gain = ttft(WeightClass::Bf16) / ttft(narrow);
            assert!(gain > 0.85 * times && gain <= times * 1.01, "{name} {narrow:?}: {gain}");
        }
    }
}

/// Half the bytes for each pass, and twice the operations of a second: what int8 brings where nothing is lost besides.
#[test]
fn narrow_weights_bring_what_the_limits_say() {
    let model = NamedModel::find("7b").expect("a number of parameters is a model");
    let on = |weights, int8_ops| {
        let machine = Machine { int8_ops, ..Machine::given(1e12, 1e11, None) };
        Deployment::new(&model, weights, KvDtype::Bf16, machine)
    };
    let wide = on(WeightClass::Bf16, 1e12);
    let usual = Ask::usual(4096);
    assert_eq!((usual.prompt, usual.response, usual.batch), (1024, 256, 1));
    for (int8_ops, prefill) in [(2e12, 2.0), (1e12, 1.0), (0.5e12, 0.5)] {
        let gain = wide.gain(&on(WeightClass::Int8, int8_ops), &usual);
        // Attention over keys of 16 bits, and their reading, stay.
        assert!((gain.prefill - prefill).abs() < 0.1 && (1.8..=2.0).contains(&gain.decode), "{int8_ops}: {gain:?}");
    }
    let same = wide.gain(&wide, &usual);
    close(same.prefill, 1.0);
    close(same.decode, 1.0);
    for limit in [1, 2, 100, 1279, 1280] {
        let Ask { prompt, response, .. } = Ask::usual(limit);
        assert!(prompt >= 1 && response >= 1 && prompt + response <= limit.max(2), "{limit}: {prompt} and {response}");
    }
}

/// A machine whose steps were measured: 10 ms up to eight rows, and 2 ms for each row more.
fn with_a_knee_at_eight(acceptance: f64, drafter: Option<f64>) -> Deployment {
    let knots = [(1, 0.010), (8, 0.010), (108, 0.210)].map(|(rows, seconds)| Knot { rows, seconds });
    let measured = deployment("7b", Machine { basis: Basis::Steps, ..Machine::given(1e15, 1e15, None) });
    let drafter = drafter.map(|seconds| {
        let cost = CostModel::new(vec![Knot { rows: 1, seconds }], Terms::default());
        Box::new(Deployment { cost, ..measured.clone() })
    });
    let cost = CostModel::new(knots.to_vec(), Terms::default());
    Deployment { cost, speculation: Some(SpeculationModel { acceptance, drafter }), ..measured }
}

#[test]
fn drafts_pay_up_to_where_rows_cost_time() {
    let planned = |acceptance, drafter, batch| {
        let plan = with_a_knee_at_eight(acceptance, drafter).plan(&ask(100, 100, batch));
        plan.speculation.expect("speculation is on")
    };
    // Chance, milliseconds of a drafter's pass, batch; drafts a request, tokens a step, ms of it, the batch where it ends.
    type Case = (&'static str, f64, Option<f64>, usize, f64, f64, f64, usize);
    let cases: [Case; 8] = [
        // 1 + .5 + .25 + ... + .5^7
        ("seven rows are free", 0.5, None, 1, 7.0, 1.9921875, 10.0, 8),
        // The ninth row costs 2 ms of 10 and brings .9^8 of 5.7 tokens; the tenth 2 of 12 and .9^9 of 6.1.
        ("and further ones do not pay", 0.9, None, 1, 7.0, 5.6953279, 10.0, 8),
        ("four streams have a row each", 0.5, None, 4, 1.0, 1.5, 10.0, 8),
        ("five have three rows", 0.5, None, 5, 0.6, 1.3, 10.0, 8),
        ("eight have none", 0.5, None, 8, 0.0, 1.0, 10.0, 8),
        // Of 10 ms and 4 for each draft: 1.8 / 14 is more than 1 / 10, 2.44 / 18 more, 2.952 / 22 less.
        ("a drafter has its price", 0.8, Some(4.0), 1, 2.0, 2.44, 18.0, 6),
        // Four rows are as many as one to it: all have one draft, in one pass. Of six only two could have one.
        ("a pass of it serves all", 0.8, Some(4.0), 4, 1.0, 1.8, 14.0, 6),
        ("a drafter as slow as the model", 0.8, Some(10.0), 1, 0.0, 1.0, 10.0, 1),
    ];
    for (what, acceptance, drafter, batch, drafts, tokens, ms, stops_at) in cases {
        let planned = planned(acceptance, drafter.map(|ms| ms / 1e3), batch);
        close(planned.drafts, drafts);
        close(planned.tokens, tokens);
        close(planned.step * 1e3, ms);
        close(planned.drafting * 1e3, drafts * drafter.unwrap_or(0.0));
        close(planned.tpot, planned.step / planned.tokens);
        close(planned.gain, 0.010 / planned.tpot);
        assert_eq!(planned.stops_at, Some(stops_at), "{what}: {planned:?}");
    }
}

/// The scheduler's rule agrees with the definition: no other number of drafts is faster.
#[test]
fn no_other_number_of_drafts_is_faster() {
    for (model, machine) in [("7b", "h100"), ("0.5b", "epyc-2core"), ("mixtral-8x7b", "a100")] {
        let plain = deployment(model, Machine::named(machine).expect("known"));
        for (acceptance, batch) in [(0.3, 1), (0.8, 1), (0.95, 1), (0.6, 3), (0.8, 16), (0.8, 200)] {
            let speculation = Some(SpeculationModel { acceptance, drafter: None });
            let planned = Deployment { speculation, ..plain.clone() }.plan(&ask(500, 200, batch)).speculation;
            let SpeculationPlan { drafts, tokens, tpot, gain, stops_at, .. } = planned.expect("speculation is on");
            let what = format!("{model} on {machine}, {acceptance}, {batch}: {drafts} drafts, {gain}");
            assert!(gain >= 1.0 && tokens <= 1.0 / (1.0 - acceptance), "{what}");
            assert!(drafts == 0.0 || stops_at.is_none_or(|stops| batch < stops), "{what}, {stops_at:?}");
            // The same rows as in a larger batch, which also reads the keys of the additional requests.
            let rows = batch + (drafts * batch as f64).round() as usize;
            assert!(plain.step(rows, 600.0) >= tpot * tokens * (1.0 - 1e-9), "{what}");
        }
    }
}

#[test]
fn speculation_is_described() {
    let text =
        |acceptance, drafter, batch| with_a_knee_at_eight(acceptance, drafter).plan(&ask(100, 100, batch)).to_string();
    for (planned, line) in [
        (
            text(0.5, None, 1),
            "with speculation?  if 50 % are accepted, 7 drafts a step: 1.99 tokens in 10 ms, TPOT 5.0 ms, 1.99 times as fast; \
             none pays from a batch of 8 on",
        ),
        (text(0.5, None, 5), "if 50 % are accepted, 0.6 drafts a step: 1.30 tokens in 10 ms"),
        (
            text(0.8, Some(0.004), 1),
            "if 80 % are accepted, 2 drafts a step by 7b: 2.44 tokens in 18 ms, 8.0 ms of it drafting, TPOT 7.4 ms, 1.36 times as \
             fast",
        ),
        (text(0.5, None, 9), "if 50 % are accepted, no draft pays at this batch; below a batch of 8 some do"),
        (text(0.8, Some(0.010), 1), "no draft by 7b pays at this batch; each costs more time than it brings"),
    ] {
        assert!(planned.contains(line), "{line:?} is not in\n{planned}");
    }
    let none = deployment("7b", Machine::given(312e12, 2e12, None)).plan(&ask(100, 100, 1));
    assert!(!none.to_string().contains("speculation") && none.json()["speculation"].is_null());
}

/// 2,000 reasoning tokens before an answer of 100.
#[test]
fn a_thought_costs_what_its_tokens_cost() {
    let deployment = deployment("7b", Machine::given(312e12, 2e12, Some(80e9)));
    let thoughtful = Ask { thinking: 2000, ..ask(1000, 100, 4) };
    let (with, without) = (deployment.plan(&thoughtful), deployment.plan(&ask(1000, 100, 4)));
    let thinking = with.thinking.expect("it thinks");
    assert!(without.thinking.is_none());
    close(thinking.seconds, 2000.0 * with.times.tpot);
    close(thinking.visible, with.times.ttft + thinking.seconds);
    close(with.times.total, with.times.ttft + 2099.0 * with.times.tpot);
    close(thinking.total_without, without.times.total);
    assert_eq!(thinking.requests_without, without.memory.requests);
    // For latency and cache, reasoning is a longer answer.
    let longer = deployment.plan(&ask(1000, 2100, 4));
    assert_eq!((with.times, with.memory), (longer.times, longer.memory));
    let text = with.to_string();
    assert!(text.contains("with reasoning?    2,000 reasoning tokens take"), "{text}");
    assert_eq!(with.json()["ask"]["thinking"], 2000);
}
