//! What tokens cost, what is cached, and what a link takes.

use serde_json::Value;
use testing::plan_question;

use crate::questions::asked;

fn number(plan: &Value, pointer: &str) -> f64 {
    plan.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}: {plan}"))
}

#[track_caller]
fn near(got: f64, wanted: f64) {
    assert!((got - wanted).abs() <= wanted.abs() * 1e-4 + 2e-6, "{got} is not {wanted}");
}

/// The lesson on money: a model of 7 billion parameters in 16 bits on an A100 at 2.00 an hour, fully busy.
#[test]
fn an_output_token_is_dear_alone_and_cheap_in_a_batch() {
    let price = |batch: usize, kind: &str, more: &str| {
        let plan = asked(&format!("model=7b&machine=a100&price=2.00&batch={batch}{more}")).expect("a good question");
        number(&plan, &format!("/cost/{kind}/price"))
    };
    let digits = |price: f64| format!("{price:.2}");
    assert_eq!(digits(price(1, "input", "&utilization=1")), "0.04");
    assert_eq!(digits(price(1, "output", "&utilization=1")), "6.77");
    assert_eq!(digits(price(64, "output", "&utilization=1")), "0.17");
    // Hours in which a machine waits are paid as well.
    near(price(64, "output", ""), price(64, "output", "&utilization=1") / 0.7);
    near(
        price(1, "input", "&machines=4"),
        4.0 * price(1, "input", "") * {
            let ttft = |more| number(&asked(&format!("model=7b&machine=a100{more}")).expect("good"), "/ttft_alone_ms");
            ttft("&machines=4") / ttft("")
        },
    );
    let said = |query: &str| {
        let pairs = query.split('&').map(|pair| pair.split_once('=').expect("a pair"));
        plan::Question::from_parameters(pairs).and_then(|it| it.plan(&plan::Here::default())).expect("good").to_string()
    };
    let text = said("model=7b&machine=a100&price=2.00&utilization=1");
    assert!(text.contains("a million tokens: input 0.042 and 8.30 Wh, output 6.77 and 1.35 kWh"), "{text}");
    assert!(!said("model=7b&flops=312T&bandwidth=2T").contains("a million tokens"), "neither price nor watts");
}

#[test]
fn energy_is_power_for_the_same_seconds() {
    let plan = asked("model=7b&machine=a100&price=3600&watts=3600&machines=2").expect("a good question");
    for kind in ["input", "output", "request"] {
        near(
            number(&plan, &format!("/cost/{kind}/price")),
            2.0 * number(&plan, &format!("/cost/{kind}/machine_seconds")),
        );
        near(number(&plan, &format!("/cost/{kind}/watt_hours")), number(&plan, &format!("/cost/{kind}/price")));
    }
    // Without a price there is energy, and without watts neither.
    let known = asked("model=7b&machine=h100").expect("a good question");
    assert!(known["cost"]["input"]["price"].is_null() && known["cost"]["input"]["watt_hours"].is_f64(), "{known}");
    let own = asked("model=7b&flops=312T&bandwidth=2T").expect("a good question");
    assert!(
        own["cost"]["output"]["watt_hours"].is_null() && own["cost"]["output"]["machine_seconds"].is_f64(),
        "{own}"
    );
}

/// What is cached is neither computed nor free: the rest attends to it.
#[test]
fn a_cached_token_costs_attention_alone() {
    let of = |cached: &str| asked(&format!("model=7b&machine=h100&prompt=20000{cached}")).expect("a good question");
    let (none, most) = (of(""), of("&cached=0.9"));
    assert!(none["cost"]["cached"].is_null() && none["ask"]["cached"] == 0, "{none}");
    // 18,000 tokens are 562 whole blocks of 32.
    assert_eq!((&most["ask"]["cached"], &most["prefill"]["tokens"]), (&17_984.into(), &2016.into()));
    assert!(number(&most, "/ttft_ms") < 0.25 * number(&none, "/ttft_ms"), "{most}");
    assert_eq!(most["tpot_ms"], none["tpot_ms"], "decode reads all keys, from wherever they came");
    let seconds = |kind: &str| number(&most, &format!("/cost/{kind}/machine_seconds"));
    assert!(seconds("cached") > 0.0 && seconds("cached") < 0.1 * seconds("input"), "{}", most["cost"]);
    let one = asked("model=7b&machine=h100&prompt=1&cached=0.99").expect("a good question");
    assert_eq!(one["ask"]["cached"], 0, "the last token is computed");
}

/// Two sums a layer of 4,096 numbers in 16 bits, of which each of four machines sends three quarters twice.
#[test]
fn a_link_takes_time_for_each_row() {
    let of = |more: &str| {
        let plan = asked(&format!("model=llama-3.1-8b&flops=312T&bandwidth=2T&machines=4{more}")).expect("good");
        (number(&plan, "/ttft_ms"), number(&plan, "/tpot_ms"))
    };
    let row = 32.0 * 2.0 * 4096.0 * 2.0 * 2.0 * 0.75 / 100e9 * 1e3;
    let ((ttft, tpot), (slow_ttft, slow_tpot)) = (of(""), of("&link=100G"));
    near(slow_tpot - tpot, row);
    near(slow_ttft - ttft, 1024.0 * row);
    let alone = |more: &str| asked(&format!("model=7b&machine=h100{more}")).expect("good")["ttft_ms"].clone();
    assert_eq!(alone("&link=1M"), alone(""), "one machine sends nothing");
}

/// Of whatever is asked: no prediction below its floor, no share above a limit, and the parts of a cost are the whole.
#[test]
fn random_questions_keep_what_is_promised() {
    for seed in 0..300 {
        let parameters = plan_question(seed);
        let query = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&");
        let plan = asked(&query).unwrap_or_else(|problem| panic!("seed {seed}, {query}: {problem}"));
        for time in ["ttft_ms", "tpot_ms"] {
            let (floor, got) = (number(&plan, &format!("/floors/{time}")), number(&plan, &format!("/{time}")));
            assert!(got >= floor - 1e-6, "seed {seed}, {query}: {time} {got} below {floor}");
        }
        let column = |name: &str| plan["curves"][name].as_array().unwrap_or_else(|| panic!("{name}: {query}")).iter();
        for (above, below, axis) in [
            ("ttft_ms", "ttft_floor_ms", "prompt"),
            ("tpot_ms", "tpot_floor_ms", "batch"),
            ("tokens_per_second_at_most", "tokens_per_second", "batch"),
        ] {
            assert_eq!(column(above).count(), column(axis).count());
            let own = column(axis).position(|at| *at == plan["ask"][axis]).expect("the question's own point");
            for (above, below) in column(above).zip(column(below)) {
                assert!(above.as_f64() >= below.as_f64().map(|it| it - 2e-6), "seed {seed}, {query}: {above} {below}");
            }
            if above != "tokens_per_second_at_most" {
                assert_eq!(plan["curves"][above][own], plan[above], "seed {seed}, {query}");
            }
        }
        for phase in ["prefill", "decode"] {
            assert!(number(&plan, &format!("/{phase}/compute_percent")) <= 100.001, "seed {seed}, {query}");
            assert!(number(&plan, &format!("/{phase}/memory_percent")) <= 100.001, "seed {seed}, {query}");
        }
        let seconds = |kind: &str| plan["cost"][kind]["machine_seconds"].as_f64().unwrap_or(0.0);
        let tokens = |pointer: &str| number(&plan, pointer) / 1e6;
        let parts = tokens("/prefill/tokens") * seconds("input")
            + tokens("/ask/cached") * seconds("cached")
            + tokens("/decode/tokens") * seconds("output");
        assert!((parts / seconds("request") - 1.0).abs() < 1e-3, "seed {seed}, {query}: {}", plan["cost"]);
    }
}
