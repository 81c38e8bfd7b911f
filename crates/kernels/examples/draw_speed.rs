//! What drawing from a vocabulary of 151,936 tokens costs on this core, and how well draws follow their distribution.
//!
//! ```text
//! cargo run --release -p kernels --example draw_speed [DRAWS]
//! ```
//! With DRAWS, so many from each of 50 rows of 20 to 5,000 ids: the least p of Pearson's chi-square over the rows, by
//! the approximation of Wilson and Hilferty.

use std::hint::black_box;
use std::time::Instant;

use kernels::sampling::{Noise, masses, philox};

const VOCAB: usize = 151_936;
const ROWS: u32 = 50;

fn main() {
    let (row, mut weights, mut sums) = (logits(0, VOCAB, 12.0), vec![0; VOCAB], Vec::new());
    let (mut weighing, mut racing) = (Vec::new(), Vec::new());
    for position in 0..400 {
        let begin = Instant::now();
        masses(&row, 0.0, 1.0 / 0.7, 0.0, &mut weights);
        let weighed = Instant::now();
        black_box(Noise::new(1, 0, position).draw(&weights, &mut sums));
        weighing.push((weighed - begin).as_secs_f64() * 1e3);
        racing.push(weighed.elapsed().as_secs_f64() * 1e3);
    }
    println!("{VOCAB} tokens: weighing {:.3} ms, the race {:.3} ms", median(weighing), median(racing));
    let draws: u64 = std::env::args().nth(1).map_or(0, |draws| draws.parse().expect("a number of draws"));
    if draws > 0 {
        let least = (0..ROWS).map(|row| chance(row, draws)).fold(1.0, f64::min);
        println!("{ROWS} rows of {draws} draws: least p {least:.1e}");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A few large, many small.
fn logits(seed: u32, len: usize, spread: f32) -> Vec<f32> {
    let uniform = |id: u32| philox([id, seed, 0, 0], [7, 7])[0] as f32 / u32::MAX as f32;
    (0..len as u32).map(|id| -spread * (1.0 - uniform(id).powi(3))).collect()
}

/// The p of what was drawn from a row.
fn chance(row: u32, draws: u64) -> f64 {
    let len = [20, 60, 300, 1000, 5000][row as usize % 5];
    let logits = logits(row, len, 2.0 + (row / 5) as f32);
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut weights, mut sums, mut counts) = (vec![0; len], Vec::new(), vec![0u64; len]);
    masses(&logits, max, 1.0, 0.0, &mut weights);
    for index in 0..draws {
        // Half of them differ in their seed, half in their position.
        let noise = if index % 2 == 0 { Noise::new(index, row, 5) } else { Noise::new(5, row, index) };
        counts[noise.draw(&weights, &mut sums).expect("something has mass") as usize] += 1;
    }
    let total = weights.iter().sum::<u64>() as f64;
    let (mut square, mut cells, mut rare) = (0.0, 0, (0.0, 0.0));
    for (&count, &weight) in counts.iter().zip(&weights) {
        let expected = weight as f64 / total * draws as f64;
        if expected >= 10.0 {
            square += (count as f64 - expected).powi(2) / expected;
            cells += 1;
        } else {
            rare = (rare.0 + count as f64, rare.1 + expected);
        }
    }
    if rare.1 >= 10.0 {
        square += (rare.0 - rare.1).powi(2) / rare.1;
        cells += 1;
    }
    let part = 2.0 / (9.0 * f64::from(cells - 1));
    let normal = ((square / f64::from(cells - 1)).cbrt() - (1.0 - part)) / part.sqrt();
    upper_tail(normal)
}

/// The normal distribution beyond `x`, by Simpson's rule.
fn upper_tail(x: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, end) = (2000, x.max(0.0) + 12.0);
    let width = (end - x) / f64::from(steps);
    let weight = |step: i32| if step == 0 || step == steps { 1.0 } else { f64::from(2 + 2 * (step % 2)) };
    (0..=steps).map(|step| weight(step) * density(x + width * f64::from(step))).sum::<f64>() * width / 3.0
}
