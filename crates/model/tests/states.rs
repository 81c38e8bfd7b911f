//! Models of which some layers have a state: the logits of a row, and the states after it, are a function of the
//! weights and the row's token history, wherever a sequence was cut, gone back to, and computed with.
//!
//! ```text
//! slot 3 ──read──> rows 40 .. 61 ──after row 47──> slot 5        a pass never writes a slot that it reads
//!                                └──after row 61──> slot 1
//! ```

use crate::common;

use common::*;
use kernels::{Isa, KvDtype, Reference, WeightClass};
use model::{Batch, Forward, LoadOptions};
use std::ops::Range;
use std::sync::Arc;

/// Dense with states in the first and the last layer; experts and one shared; projections key head by key head; short
/// convolutions in the first and the last layer; those with biases, and experts; Mamba-2 with experts, and dense; layers that
/// are one block each, the last of them Mamba-2, or experts; Mamba-2 and attention beside each other; decays
/// of keys, beside latent attention.
const CHECKPOINTS: [&str; 13] = [
    "qwen3.5",
    "qwen3.5-moe",
    "qwen3-next",
    "lfm2",
    "lfm2-moe",
    "granite-hybrid",
    "granite-hybrid-dense",
    "nemotron-h",
    "nemotron-3",
    "falcon-h1",
    "falcon-h1-gate-first",
    "kimi-linear",
    "kimi-linear-listed",
];
/// Longer than an attention split (256).
const LEN: usize = 271;
const BLOCKS: [u32; 9] = [4, 0, 7, 1, 9, 3, 12, 5, 30];

/// What the reference says of a prompt in one pass.
struct Expected {
    prompt: Vec<u32>,
    rows: Vec<Vec<u32>>,
    /// The states after some positions.
    states: Vec<(usize, Vec<u8>)>,
}

const SAVED: [usize; 5] = [0, 31, 40, 200, LEN - 1];

fn state(model: &dyn Forward, slot: u32) -> Vec<u8> {
    let mut buffer = model.host_buffer(vec![0; model.state_bytes()]);
    model.save_state(slot, Arc::get_mut(&mut buffer).unwrap());
    model.submit().unwrap();
    buffer.bytes().unwrap().to_vec()
}

/// Rows of the prompt from a state, and what is left of them; the logits of all.
fn pass(
    model: &mut dyn Forward,
    prompt: &[u32],
    rows: Range<usize>,
    from: Option<u32>,
    after: &[(usize, u32)],
) -> Vec<Vec<u32>> {
    let mut batch = Batch::default();
    push(&mut batch, prompt, rows, &BLOCKS, Wanted::All);
    leave(&mut batch, from, after);
    run(model, &batch)
}

fn expected(checkpoint: &str, class: WeightClass) -> Expected {
    let mut reference = load(Reference::new(), &committed(checkpoint), class);
    let prompt = random_tokens(7, LEN, reference.config().vocab_size);
    let after: Vec<(usize, u32)> = SAVED.into_iter().zip(0..).collect();
    let rows = pass(&mut reference, &prompt, 0..LEN, None, &after);
    let states = after.iter().map(|&(position, slot)| (position, state(&reference, slot))).collect();
    Expected { prompt, rows, states }
}

/// Every checkpoint on every instruction set, in a class and on threads that take turns; plain loops in a long run.
fn everywhere(check: impl Fn(&str, &Expected, &mut dyn Forward)) {
    let classes = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4];
    for (at, checkpoint) in CHECKPOINTS.into_iter().enumerate() {
        for class in testing::one_of(classes, at) {
            let expected = expected(checkpoint, class);
            let fast = Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar || testing::is_long());
            for (turn, isa) in fast.enumerate() {
                for threads in testing::one_of([1, 2], at + turn) {
                    let name = format!("{checkpoint} {class:?} on {} with {threads} threads", isa.name());
                    check(&name, &expected, &mut load(cpu(Some(isa), threads), &committed(checkpoint), class));
                }
            }
        }
    }
}

fn check_rows(expected: &Expected, first: usize, rows: &[Vec<u32>], what: &str) {
    for (index, (row, wanted)) in rows.iter().zip(&expected.rows[first..]).enumerate() {
        assert!(row == wanted, "{what}: row {} differs", first + index);
    }
}

#[test]
fn chunks_of_any_size_leave_the_same_logits_and_states() {
    everywhere(|name, expected, model| {
        for chunk in [1, 7, 64, LEN] {
            let (mut at, mut from) = (0, None);
            while at < LEN {
                // Single tokens at the start only; the stretch behind them in one go.
                let end = if chunk == 1 && at == 45 { LEN } else { (at + chunk).min(LEN) };
                let to = if from == Some(1) { 2 } else { 1 };
                let rows = pass(model, &expected.prompt, at..end, from, &[(end - 1, to)]);
                check_rows(expected, at, &rows, &format!("{name}: chunks of {chunk}"));
                for (position, wanted) in &expected.states {
                    if position + 1 == end {
                        assert!(state(model, to) == *wanted, "{name}: chunks of {chunk}: the state after {position}");
                    }
                }
                (at, from) = (end, Some(to));
            }
        }
    });
}

#[test]
fn a_sequence_goes_on_from_a_state_that_was_left_after_any_row() {
    everywhere(|name, expected, model| {
        for position in [0, 1, 2, 3, 30, 31, 63, 128, 200, LEN - 2] {
            // In the midst of a chunk, with another state beside it; the rows behind it are computed and forgotten.
            let end = (position + 40).min(LEN);
            let after = [(position, 3), (position, 6), (end - 1, 4)];
            pass(model, &expected.prompt, 0..end, None, &after);
            assert!(state(model, 3) == state(model, 6), "{name}: one row in two slots");
            let rows = pass(model, &expected.prompt, position + 1..LEN, Some(3), &[]);
            check_rows(expected, position + 1, &rows, &format!("{name}: from {position}"));
            if end < LEN {
                let rows = pass(model, &expected.prompt, end..LEN, Some(4), &[(LEN - 1, 5)]);
                check_rows(expected, end, &rows, &format!("{name}: from the end of that chunk"));
            }
        }
    });
}

#[test]
fn other_sequences_of_a_batch_leave_no_trace() {
    everywhere(|name, expected, model| {
        let vocab_size = model.config().vocab_size;
        let (b, c) = (random_tokens(8, 60, vocab_size), random_tokens(9, 200, vocab_size));
        // A brings chunks, B a token a step, C chunks from its beginning again and again, which leave nothing.
        let (mut at, mut of_a, mut of_b) = (0, None, None);
        for step in 0.. {
            if at == LEN {
                break;
            }
            let end = (at + [50, 1, 13, 64][step % 4]).min(LEN);
            let (to_a, to_b) = (if of_a == Some(0) { 1 } else { 0 }, if of_b == Some(2) { 3 } else { 2 });
            let mut batch = Batch::default();
            let order = [[0, 1, 2], [1, 0, 2], [2, 1, 0]][step % 3];
            for sequence in order {
                match sequence {
                    0 => {
                        push(&mut batch, &expected.prompt, at..end, &BLOCKS, Wanted::All);
                        leave(&mut batch, of_a, &[(end - 1, to_a)]);
                    }
                    1 => {
                        push(&mut batch, &b, step..step + 1, &[40, 41], Wanted::All);
                        leave(&mut batch, of_b, &[(step, to_b)]);
                    }
                    _ => push(&mut batch, &c, 0..20 + step, &[50, 51, 52], Wanted::All),
                }
            }
            let mut rows = run(model, &batch).into_iter();
            for sequence in order {
                let rows: Vec<_> = rows.by_ref().take([end - at, 1, 20 + step][sequence]).collect();
                if sequence == 0 {
                    check_rows(expected, at, &rows, &format!("{name}: in a mixed batch"));
                }
            }
            (at, of_a, of_b) = (end, Some(to_a), Some(to_b));
        }
        let last = &expected.states[SAVED.len() - 1].1;
        assert!(state(model, of_a.unwrap()) == *last, "{name}: the state at the end of a mixed batch");
    });
}

#[test]
fn a_state_that_is_read_or_not_named_stays_as_it_is() {
    everywhere(|name, expected, model| {
        let all = |model: &dyn Forward| (0..STATE_SLOTS as u32).map(|slot| state(model, slot)).collect::<Vec<_>>();
        for slot in 0..STATE_SLOTS as u32 {
            let bytes = vec![slot as u8 + 1; model.state_bytes()];
            model.load_state(&*model.host_buffer(bytes), slot);
        }
        pass(model, &expected.prompt, 0..41, None, &[(40, 2)]);
        let before = all(model);
        pass(model, &expected.prompt, 41..201, Some(2), &[(100, 5), (200, 7)]);
        let after = all(model);
        for slot in 0..STATE_SLOTS {
            assert_eq!(before[slot] == after[slot], ![5, 7].contains(&slot), "{name}: slot {slot}");
        }
        assert!(after[2] == expected.states[2].1 && after[7] == expected.states[3].1, "{name}: the states themselves");
        // So a pass can be computed again, and a state can move to where there is room.
        let bytes = state(model, 2);
        model.load_state(&*model.host_buffer(bytes), 0);
        let rows = pass(model, &expected.prompt, 41..201, Some(0), &[(200, 5)]);
        check_rows(expected, 41, &rows, &format!("{name}: computed again from a copy"));
        assert!(state(model, 5) == expected.states[3].1, "{name}: the state of that");
    });
}

/// In the last layer only the rows with logits are computed to the end; a state is led past all of them.
#[test]
fn rows_without_logits_are_part_of_the_state() {
    everywhere(|name, expected, model| {
        for wanted in [Wanted::None, Wanted::Last] {
            let mut batch = Batch::default();
            push(&mut batch, &expected.prompt, 0..201, &BLOCKS, wanted);
            leave(&mut batch, None, &[(40, 1), (200, 2)]);
            let rows = run(model, &batch);
            check_rows(expected, 201 - rows.len(), &rows, &format!("{name}: {wanted:?} wanted"));
            assert!(state(model, 1) == expected.states[2].1, "{name}: {wanted:?} wanted: after 40");
            assert!(state(model, 2) == expected.states[3].1, "{name}: {wanted:?} wanted: after 200");
        }
        // Neither does a drafter that reads the last layer's rows change anything.
        model.tap(&[0, model.config().num_layers]).unwrap();
        let rows = pass(model, &expected.prompt, 0..LEN, None, &[(LEN - 1, 1)]);
        check_rows(expected, 0, &rows, &format!("{name}: tapped"));
        assert!(state(model, 1) == expected.states[4].1, "{name}: tapped");
    });
}

/// A state is a function of every token before it, so that the tests above could fail.
#[test]
fn another_history_gives_another_state() {
    for checkpoint in CHECKPOINTS {
        let mut model = load(cpu(None, 1), &committed(checkpoint), WeightClass::Bf16);
        let prompt = random_tokens(7, 40, model.config().vocab_size);
        let rows = pass(&mut model, &prompt, 0..40, None, &[(39, 0)]);
        for changed in [0, 20, 39] {
            let mut other = prompt.clone();
            other[changed] = (other[changed] + 1) % model.config().vocab_size as u32;
            let others = pass(&mut model, &other, 0..40, None, &[(39, 1)]);
            assert_eq!(rows[..changed], others[..changed], "{checkpoint}: rows before token {changed}");
            assert_ne!(rows[39], others[39], "{checkpoint}: the last row, with token {changed} changed");
            assert!(state(&model, 0) != state(&model, 1), "{checkpoint}: the state, with token {changed} changed");
        }
    }
}

#[test]
fn slots_are_taken_at_load_and_only_where_there_are_states() {
    let numbers = |name: &str| load(cpu(None, 1), &committed(name), WeightClass::Bf16).state_bytes();
    // Per layer of linear attention: 3 inputs of 2 x 2 x 16 + 6 x 32 channels, and 6 heads of 16 x 32; three of five.
    assert_eq!(numbers("qwen3.5"), 4 * 3 * (3 * 256 + 6 * 16 * 32));
    assert_eq!(numbers("qwen3.5-moe"), 4 * 3 * (3 * 112 + 3 * 32 * 16));
    assert_eq!(numbers("qwen3-next"), 4 * 2 * (2 * 192 + 4 * 16 * 32));
    // Two inputs of 48 channels in three layers; three of 32 in three.
    assert_eq!(numbers("lfm2"), 4 * 3 * 2 * 48);
    assert_eq!(numbers("lfm2-moe"), 4 * 3 * 3 * 32);
    // Three inputs of 64 + 2 x 2 x 32 channels, and 4 heads of 32 x 16, in three layers; two of 64 + 2 x 16, 2 heads.
    assert_eq!(numbers("granite-hybrid"), 4 * 3 * (3 * 192 + 4 * 32 * 16));
    assert_eq!(numbers("granite-hybrid-dense"), 4 * 2 * (2 * 96 + 2 * 16 * 32));
    // Two inputs of 6 x 16 + 2 x 2 x 16 channels, and 6 heads of 16 x 16, in two layers; three of 6 x 16 + 2 x 3 x 32.
    assert_eq!(numbers("nemotron-h"), 4 * 2 * (2 * 160 + 6 * 16 * 16));
    assert_eq!(numbers("nemotron-3"), 4 * 2 * (3 * 288 + 6 * 32 * 16));
    // Three inputs of 4 x 16 + 2 x 2 x 32 channels, and 4 heads of 32 x 16, in two layers.
    assert_eq!(numbers("falcon-h1"), 4 * 2 * (3 * 192 + 4 * 32 * 16));
    // Three inputs of 3 x 3 x 16 channels, and 3 heads of 16 x 16, in three layers.
    assert_eq!(numbers("kimi-linear"), 4 * 3 * (3 * 144 + 3 * 16 * 16));
    assert_eq!(numbers("llama3"), 0);

    let absurd = LoadOptions { state_slots: 1 << 40, ..options(WeightClass::Bf16) };
    let mut nothing = |_| {};
    let error = model::load(cpu(None, 1), &committed("qwen3.5"), &absurd, &mut nothing).err().unwrap().to_string();
    assert!(error.contains("states of 1099511627776 slots"), "{error}");
    assert!(model::load(cpu(None, 1), &committed("llama3"), &absurd, &mut nothing).is_ok(), "it has none");

    // Without a slot a model still computes: passes may leave nothing.
    let options = LoadOptions { state_slots: 0, kv_dtype: KvDtype::Int8, ..options(WeightClass::Bf16) };
    let mut model = model::load(cpu(None, 1), &committed("qwen3.5"), &options, &mut nothing).unwrap();
    let prompt = random_tokens(7, 40, model.config().vocab_size);
    assert_eq!(pass(&mut model, &prompt, 0..40, None, &[]).len(), 40);
}
