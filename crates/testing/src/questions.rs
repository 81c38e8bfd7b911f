//! Questions for a plan, by chance: the pure function, the command line and the route have the same answers.

use crate::Dice;

/// The parameters of a good question, as `/plan` takes them.
pub fn plan_question(seed: u64) -> Vec<(&'static str, String)> {
    const MODELS: [&str; 9] = [
        "7b",
        "0.5b",
        "30b-a3b",
        "llama-3.1-8b",
        "qwen3-0.6b",
        "mixtral-8x7b",
        "deepseek-v3",
        "gemma-3-4b",
        "gpt-oss-20b",
    ];
    const MACHINES: [&str; 8] =
        ["a100", "h100", "rtx-4090", "gb10", "mi355x", "xeon-6980p", "epyc-9755", "ryzen-ai-max-395"];
    let mut dice = Dice::new(seed);
    let mut all = vec![("model", dice.pick(&MODELS).to_string())];
    let mut add = |name, value: &dyn ToString| all.push((name, value.to_string()));
    if dice.percent(75) {
        add("machine", &dice.pick(&MACHINES));
    } else {
        add("flops", &format!("{}T", dice.within(1..=900)));
        add("bandwidth", &format!("{}G", dice.within(20..=5000)));
        if dice.percent(80) {
            add("memory", &format!("{}G", dice.within(2..=400)));
        }
    }
    add("prompt", &dice.within(1..=6000));
    add("response", &dice.within(1..=1000));
    add("batch", &if dice.percent(50) { 1 } else { dice.within(1..=200) });
    let whole = [("thinking", 1..=1000), ("machines", 1..=8), ("rows", 16..=4096), ("watts", 10..=2000)];
    for (name, range) in whole {
        if dice.percent(30) {
            add(name, &dice.within(range));
        }
    }
    for (name, words) in [("weights", &["bf16", "int8", "int4"][..]), ("kv", &["bf16", "int8"])] {
        if dice.percent(50) {
            add(name, &dice.pick(words));
        }
    }
    for name in ["cached", "utilization", "acceptance"] {
        if dice.percent(30) {
            add(name, &format!("{:.3}", 0.02 + 0.96 * dice.share()));
        }
    }
    if dice.percent(40) {
        add("link", &format!("{}G", dice.within(1..=900)));
    }
    if dice.percent(60) {
        let own = format!("{:.2}", 0.05 + 5.0 * dice.share());
        add("price", &if dice.percent(60) { own } else { format!("a100={own},h100=3.5,l4=0.8") });
    }
    if dice.percent(60) {
        add("users", &dice.within(1..=100_000));
        add("rate", &format!("{}/min", dice.within(1..=30)));
        for (name, most) in [("ttft", 3000), ("tpot", 150)] {
            if dice.percent(60) {
                add(name, &dice.within(1..=most));
            }
        }
    }
    all
}
