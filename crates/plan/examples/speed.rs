//! Simulated requests per minute: one instance, 500 tokens each, and nothing else around it.
//!
//! `cargo run --release -p plan --example speed -- INPUT OUTPUT RATE REQUESTS`

use std::time::Instant;

use kernels::{KvDtype, WeightClass};
use plan::Simulated;
use roofline::{Machine, ModelShape};
use scheduler::Limits;
use sim::{Fleet, Instance, Lengths, Shape, Workload, simulate};

fn main() {
    let arguments: Vec<f64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let &[input, output, rate, requests] = &arguments[..] else {
        return eprintln!("usage: speed INPUT OUTPUT RATE REQUESTS");
    };
    let size = Simulated::of(&ModelShape::named("llama-3.1-8b").expect("a known model"), 2.0, 2.0);
    let machine = Machine::named("h100").expect("a known machine");
    let limits = Limits {
        block_size: 32,
        num_blocks: size.kv_blocks(machine.memory.expect("it is known"), 32),
        max_model_len: size.max_model_len,
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        max_prefill_chunk: 2048,
        max_prefill_seqs: 16,
        max_queued_requests: usize::MAX,
        max_queued_tokens: usize::MAX / 2,
        enable_prefix_caching: true,
        hash_key: [0; 32],
    };
    let cost = size.on(&machine, WeightClass::Bf16, KvDtype::Bf16);
    let lengths = Lengths { input_tokens: input as usize, output_tokens: output as usize, cv: 0.0 };
    for (name, belief) in [("static chunks", None), ("with a cost model", Some(cost.clone()))] {
        let fleet = Fleet::of(1, &Instance { limits: limits.clone(), machine: cost.clone().into(), belief });
        let start = Instant::now();
        let workload = Workload::synthetic(Shape::Poisson, lengths, rate, requests as usize, 1);
        let report = simulate(&workload, &fleet, &mut ()).expect("good limits");
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{name}: {:.2} million requests per minute; {:.1} running, busy {:.0} %, {:.0} times as fast as the clock",
            requests / seconds * 60.0 / 1e6,
            report.decode_rows as f64 / report.steps as f64,
            report.busy * 100.0,
            report.seconds / seconds
        );
    }
}
