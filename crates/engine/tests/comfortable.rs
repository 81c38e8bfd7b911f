//! Which targets hold when nobody names any.

use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, House, Targets};

/// A machine with so many milliseconds for a pass of one row, and for each further one.
fn machine(pass_ms: f64, row_ms: f64) -> CostModel {
    let at = |rows: usize| Knot { rows, seconds: (pass_ms + (rows - 1) as f64 * row_ms) / 1e3 };
    CostModel::new(vec![at(1), at(1001)], Terms::default())
}

#[test]
fn targets_are_comfortable_where_the_machine_can_do_it() {
    // (milliseconds of a pass, of each further row, seats), and the targets in milliseconds: to first token, then each.
    let table = [
        ((0.1, 0.01, 64), (1000, 50)),      // faster than anybody reads
        ((20.0, 0.1, 64), (1000, 53)),      // a full house takes 26.3 ms: twice that leaves prompts half of the time
        ((30.0, 0.5, 64), (1800, 130)),     // 61.5 ms; a prompt of 1,024 takes 2 passes of 285.5 ms
        ((30.0, 1.0, 64), (3300, 150)),     // 93 ms: twice that is slower than is comfortable
        ((100.0, 1.0, 64), (3700, 210)),    // 163 ms: a quarter more, or prompts crawl
        ((100.0, 1.0, 1), (3700, 150)),     // one seat
        ((5000.0, 0.0, 8), (30_000, 6300)), // a machine that can do no better
    ];
    for ((pass_ms, row_ms, seqs), (ttft_ms, tpot_ms)) in table {
        let house = House { seqs, tokens_each: 1024, rows: 512 };
        let Targets { ttft, tpot } = Targets::comfortable(&machine(pass_ms, row_ms), &house);
        let ms = |target: Option<scheduler::Nanos>| target.expect("it is given").0 as f64 / 1e6;
        assert_eq!((ms(ttft), ms(tpot)), (f64::from(ttft_ms), f64::from(tpot_ms)), "{pass_ms} {row_ms} {seqs}");
    }
}

#[test]
fn long_contexts_count() {
    let terms = Terms { key: 1e-6, ..Terms::default() };
    let cost = CostModel::new(vec![Knot { rows: 1, seconds: 0.030 }], terms);
    let tpot = |tokens_each| {
        let house = House { seqs: 64, tokens_each, rows: 512 };
        Targets::comfortable(&cost, &house).tpot.expect("it is given").0 / 1_000_000
    };
    assert_eq!([tpot(10), tpot(500), tpot(1000), tpot(4000)], [62, 130, 150, 360]);
}
