//! Which worker takes a request. The machine: 10 ms for a pass, and 0.1 ms for each row.

use protocol::Nanos;
use scheduler::CostModel;
use scheduler::cost::{Knot, Terms};
use scheduler::router::{Snapshot, route};

fn machine() -> CostModel {
    let at = |rows: usize| Knot { rows, seconds: 0.010 + rows as f64 * 1e-4 };
    CostModel::new(vec![at(1), at(1001)], Terms::default())
}

const IDLE: Snapshot = Snapshot {
    prefill_tokens: 0,
    decode_rows: 0,
    decode_context: 0,
    rows_per_step: 1000,
    cached_tokens: 0,
    free_tokens: 100_000,
};

#[test]
fn the_earliest_first_token_wins() {
    let waiting = |prefill_tokens| Snapshot { prefill_tokens, ..IDLE };
    let cached = |cached_tokens| Snapshot { cached_tokens, ..IDLE };
    let both = |prefill_tokens, cached_tokens| Snapshot { prefill_tokens, cached_tokens, ..IDLE };
    let full = Snapshot { free_tokens: 300, ..IDLE };
    // A prompt of 1,000 tokens.
    let cases: &[(&str, &[Snapshot], usize)] = &[
        ("equals: the first", &[IDLE, IDLE], 0),
        ("the shorter queue", &[waiting(2000), waiting(500)], 1),
        ("the cached prefix", &[IDLE, cached(800), cached(500)], 1),
        ("a prefix is worth a wait that is shorter than it", &[IDLE, both(500, 800)], 1),
        ("and not one that is longer", &[IDLE, both(900, 800)], 0),
        ("fewer decode rows in every step", &[Snapshot { decode_rows: 500, ..IDLE }, IDLE], 1),
        ("room before haste", &[full, waiting(5000)], 1),
        ("unless none has room", &[Snapshot { prefill_tokens: 900, ..full }, full], 1),
        ("what is cached needs no room", &[waiting(100), Snapshot { cached_tokens: 800, ..full }], 1),
    ];
    for (what, snapshots, wanted) in cases {
        let machine = machine();
        assert_eq!(route(1000, snapshots.iter().map(|&snapshot| (snapshot, &machine))), Some(*wanted), "{what}");
    }
    assert_eq!(route(1000, []), None);
}

#[test]
fn the_prediction_is_what_the_steps_take() {
    // 2,500 tokens before it and 500 of its own, 900 rows a step beside 100 of decode: 10/3 steps of 110 ms.
    let snapshot = Snapshot { prefill_tokens: 2500, decode_rows: 100, ..IDLE };
    let predicted = snapshot.first_token_after(500, &machine());
    assert!((predicted.0 as f64 / 366.7e6 - 1.0).abs() < 0.01, "{predicted:?}");
    assert_eq!(IDLE.first_token_after(500, &machine()), Nanos(60_000_000));
}
