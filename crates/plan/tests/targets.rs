//! Targets in, machines and batch out.

use serde_json::Value;
use testing::plan_question;

use crate::questions::asked;

const LOAD: &str = "model=llama-3.1-8b&machine=h100&users=1000&rate=2/min";

fn choices(more: &str) -> Value {
    asked(&format!("{LOAD}{more}")).unwrap_or_else(|problem| panic!("{more}: {problem}"))["choices"].clone()
}

fn rows(choices: &Value) -> &[Value] {
    choices["rows"].as_array().expect("a list")
}

#[test]
fn targets_and_users_ask_for_machines() {
    assert!(choices("").is_null(), "users alone ask how many machines of one kind");
    let found = choices("&ttft=500&tpot=30");
    assert_eq!(found["ordered_by"], "machines");
    for row in rows(&found) {
        assert!(row["ttft_ms"].as_f64() <= Some(500.0) && row["tpot_ms"].as_f64() <= Some(30.0), "{row}");
        assert!(row["batch"].as_u64() >= Some(1) && row["capped_by"].is_string() && row["watts"].is_number(), "{row}");
    }
    let names = |found: &Value| rows(found).iter().map(|row| row["machine"].clone()).collect::<Vec<_>>();
    assert!(names(&found).contains(&"mi355x".into()), "the fewest are the largest: {found}");
    // With prices those that have one, the cheapest first.
    let priced = choices("&ttft=500&tpot=30&price=a100=1.5,l40s=0.8,h100=3");
    assert_eq!(priced["ordered_by"], "price_per_hour");
    assert!(names(&priced).iter().all(|name| ["a100", "l40s", "h100"].iter().any(|known| name == known)), "{priced}");
    let prices: Vec<f64> = rows(&priced).iter().map(|row| row["price_per_hour"].as_f64().expect("a price")).collect();
    assert!(prices.is_sorted() && prices.len() > 1, "{prices:?}");
    // One price is the price of the machine of the question.
    assert!(names(&choices("&tpot=30&price=2")).iter().all(|name| name == "h100"));
    let narrow = choices("&tpot=30&weights=int8&machines=2");
    assert!(rows(&narrow).iter().all(|row| row["weights"] == "int8" && row["machines_per_instance"] == 2), "{narrow}");
}

#[test]
fn each_row_says_what_caps_its_batch() {
    let caps = |more: &str| -> Vec<String> {
        rows(&choices(more)).iter().map(|row| row["capped_by"].as_str().expect("words").to_string()).collect()
    };
    let has =
        |more: &str, word: &str| assert!(caps(more).iter().any(|cap| cap.contains(word)), "{word}: {:?}", caps(more));
    has("&price=2&tpot=12", "TPOT target");
    has("&price=2&weights=bf16&machines=2&ttft=19", "TTFT target");
    has("&price=2&tpot=1000", "no more tokens per second");
    has("&price=2&tpot=1000&prompt=20000&response=2000", "no more fit into memory");
}

#[test]
fn what_nothing_meets_is_said_with_its_distance() {
    let unmet = |more: &str| {
        let choices = choices(more);
        assert!(rows(&choices).is_empty(), "{choices}");
        let words = choices["words"].as_str().expect("words").to_string();
        let missed: Vec<(String, f64)> = (choices["unmet"].as_array().expect("a list").iter())
            .map(|it| (it["target"].as_str().expect("a name").to_string(), it["times"].as_f64().expect("a number")))
            .collect();
        (words, missed)
    };
    let (words, missed) = unmet("&ttft=1&tpot=50");
    assert!(words.contains("the best for a TTFT of 1.0 ms:") && !words.contains("TPOT"), "{words}");
    assert!(matches!(&missed[..], [(name, times)] if name == "ttft" && *times > 1.0), "{missed:?}");
    let (words, missed) = unmet("&ttft=1&tpot=0.01");
    assert!(words.contains("TTFT of 1.0 ms") && words.contains("TPOT of 0.0 ms") && missed.len() == 2, "{words}");
    let tiny = asked("model=1t&machine=t4&price=1&users=10&rate=1/min&tpot=50").expect("a good question");
    assert!(tiny["choices"]["words"].as_str().is_some_and(|words| words.contains("none has memory")), "{tiny}");
}

/// No row is beaten by another, and none misses a target.
#[test]
fn the_list_is_a_pareto_front() {
    let mut seen = 0;
    for seed in 1000..1100 {
        let query: Vec<String> = plan_question(seed).iter().map(|(name, value)| format!("{name}={value}")).collect();
        let query = query.join("&");
        let plan = asked(&query).expect("a good question");
        let choices = &plan["choices"];
        let Some(listed) = choices["rows"].as_array() else { continue };
        let key = choices["ordered_by"].as_str().expect("a key");
        let width = |row: &Value| ["bf16", "int8", "int4"].iter().position(|name| row["weights"] == *name);
        let figures = |row: &Value| {
            let width = width(row).expect("a precision") as f64;
            [row[key].as_f64(), row["ttft_ms"].as_f64(), row["tpot_ms"].as_f64(), Some(width)]
                .map(|it| it.expect("a number"))
        };
        for (index, row) in listed.iter().enumerate() {
            for other in &listed[..index] {
                let (a, b) = (figures(row), figures(other));
                assert!(b[0] <= a[0], "seed {seed}, {query}: ordered");
                let is_beaten = b.iter().zip(&a).all(|(b, a)| b < a);
                assert!(!is_beaten, "seed {seed}, {query}: {row} {other}");
            }
        }
        assert_eq!(
            listed.is_empty(),
            choices["unmet"].as_array().is_none_or(|it| !it.is_empty()) || choices["fit"] == 0
        );
        seen += listed.len();
    }
    assert!(seen > 50, "{seen} rows");
}
