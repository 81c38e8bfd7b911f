//! Microseconds that drafts take of a step of 256 streams with 8,192 tokens each, where all have some: medians of the
//! steps, and the middle half of them.
//!
//! ```text
//! cargo run --profile bench --manifest-path guards/Cargo.toml --target-dir target --example draft_speed [STEPS]
//! ```

use std::time::Instant;

use guards::crowd::{Crowd, Drafter};

/// The parts of a step.
const PARTS: [(&str, fn(&mut Crowd)); 4] =
    [("look", Crowd::look), ("offer", Crowd::offer), ("plan", Crowd::plan), ("complete", Crowd::complete)];

fn main() {
    let steps: usize = std::env::args().nth(1).map_or(400, |steps| steps.parse().expect("a number of steps"));
    println!("| drafter | {} | all | drafts | tokens |", PARTS.map(|(name, _)| name).join(" | "));
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for drafter in [Drafter::Off, Drafter::Made, Drafter::LookedUp] {
        let mut crowd = Crowd::new(drafter);
        let mut took: [Vec<f64>; 5] = Default::default();
        let (mut drafts, mut tokens) = (0, 0);
        for _ in 0..steps {
            let mut all = 0.0;
            for (part, (name, run)) in PARTS.iter().enumerate() {
                if *name == "complete" {
                    crowd.propose();
                }
                let begun = Instant::now();
                run(&mut crowd);
                let micros = begun.elapsed().as_secs_f64() * 1e6;
                took[part].push(micros);
                all += micros;
            }
            took[4].push(all);
            drafts += crowd.record.decode.iter().map(|row| row.drafts).sum::<usize>();
            tokens += crowd.record.decode.iter().map(|row| row.samples).sum::<usize>();
        }
        let cells = took.map(|mut micros| {
            micros.sort_by(f64::total_cmp);
            let at = |share: usize| micros[micros.len() * share / 4];
            format!("{:.1} ({:.1}-{:.1})", at(2), at(1), at(3))
        });
        println!("| {drafter:?} | {} | {} | {} |", cells.join(" | "), drafts / steps, tokens / steps);
    }
}
