//! What threads are worth while other processes want their cores: products per second of one thread and of all, in
//! turns, beside nothing and beside busy loops.
//!
//! ```text
//! cargo run --release -p kernels --example busy_speed [seconds of a turn] [rounds] [loads, e.g. "- 0 1 01 1111 00001111"]
//! ```
//! A load is a busy loop for each digit, on the core with that place among those of the pool (`-`: none). Wanted: for
//! every load, all threads take at most 1.1 times as long as the better of the two.

use kernels::{Cpu, CpuOptions, Device, HostBackend, MatrixShape, Out, PackedMatrix, RowSource, WeightClass, threads};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A layer of a small model, and a prompt's rows beside a token's.
const SHAPE: MatrixShape = MatrixShape { out_features: 1536, in_features: 512 };
const ROWS: [usize; 2] = [1, 256];

fn main() {
    let mut args = std::env::args().skip(1);
    let turn = Duration::from_secs_f64(args.next().map_or(2.0, |seconds| seconds.parse().expect("seconds")));
    let rounds = args.next().map_or(3, |rounds| rounds.parse().expect("rounds"));
    let loads = args.next().unwrap_or_else(|| "- 0 1 01 1111 00001111".into());
    let all = threads::default_threads();
    println!("products a second of {} rows, of {} rows; what the threads lost", ROWS[0], ROWS[1]);
    for load in loads.split_whitespace() {
        let mut loops: Vec<Child> = load.chars().filter(char::is_ascii_digit).map(busy_loop).collect();
        for _ in 0..rounds {
            for threads in [1, all] {
                // Each turn on a thread of its own: the mask of who computes stays with it.
                let line = std::thread::spawn(move || measure(threads, turn)).join().expect("a turn");
                println!("load {load:>9}, {threads} threads: {line}");
            }
        }
        for child in &mut loops {
            child.kill().and_then(|()| child.wait()).expect("it was ours");
        }
    }
}

/// On core `place`, as it stands in the affinity mask.
fn busy_loop(place: char) -> Child {
    let command = format!("exec taskset -c {place} sh -c 'while :; do :; done'");
    Command::new("sh").args(["-c", &command]).spawn().expect("a shell and taskset")
}

fn measure(threads: usize, turn: Duration) -> String {
    let cpu = Cpu::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).expect("a backend");
    cpu.adopt_thread();
    let rows =
        RowSource(&|row, to| to.iter_mut().enumerate().for_each(|(i, w)| *w = ((row * 31 + i) % 97) as f32 - 48.0));
    let matrix: PackedMatrix = cpu.pack(SHAPE, WeightClass::Bf16, &rows).expect("memory");
    let mut text = String::new();
    for rows in ROWS {
        let x: Vec<f32> = (0..rows * SHAPE.in_features).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
        let mut out = vec![0f32; rows * SHAPE.out_features];
        cpu.pool().lost();
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < turn {
            cpu.linear(&x, &matrix, None, Out::Store(&mut out));
            count += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let lost = cpu.pool().lost().map_or(0.0, |lost| lost.all.as_secs_f64());
        let share = lost / seconds / threads as f64 * 100.0;
        text += &format!("{:>9.0} ({share:.0} % lost)", f64::from(count) / seconds);
    }
    text
}
