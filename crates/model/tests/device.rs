//! The pass on a device: one whose rows are not this process's memory and that computes when it likes gives the bits of
//! [`Reference`], for every checkpoint. So neither the pass nor `Forward` touches a row, and the host blocks where it
//! says.

use crate::common;
use crate::common::device;

use checkpoint::{Checkpoint, Source};
use common::*;
use device::Remote;
use kernels::sampling::find_best;
use kernels::{DeviceError, HostBuffer, KvDtype, Reference, WeightClass};
use model::{Batch, Forward, Runner};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PRECISIONS: [(WeightClass, KvDtype); 3] =
    [(WeightClass::Bf16, KvDtype::Bf16), (WeightClass::Int8, KvDtype::Int8), (WeightClass::Int4, KvDtype::Bf16)];

fn on_device(checkpoint: &Checkpoint, (class, kv_dtype): (WeightClass, KvDtype)) -> Runner<Remote> {
    load_with_kv(Remote::new(Reference::new()), checkpoint, class, kv_dtype)
}

#[test]
fn a_device_gives_the_references_bits_on_every_checkpoint() {
    for (at, (name, directory)) in testing::part_of(committed_checkpoints(), 4).enumerate() {
        let checkpoint = Checkpoint::open(Source::Directory(directory)).unwrap();
        for precision in testing::one_of(PRECISIONS, at) {
            let (class, kv_dtype) = precision;
            let expected = passes(&mut load_with_kv(Reference::new(), &checkpoint, class, kv_dtype), 40);
            let mut model = on_device(&checkpoint, precision);
            assert!(passes(&mut model, 40) == expected, "{name} in {precision:?}");
        }
    }
}

#[test]
fn the_host_blocks_once_for_a_pass_and_once_for_a_row_of_logits() {
    for name in ["llama3", "gemma2", "granite", "olmo2"] {
        let checkpoint = committed(name);
        let mut reference = load(Reference::new(), &checkpoint, WeightClass::Bf16);
        let mut model = on_device(&checkpoint, PRECISIONS[0]);
        let waits = model.backend().waits();
        let tokens = random_tokens(3, 50, model.config().vocab_size);
        let mut batch = Batch::default();
        push(&mut batch, &tokens, 0..50, &[4, 2], Wanted::All);
        let expected = run_f32(&mut reference, &batch);

        let before = waits.load(Ordering::Relaxed);
        let ticket = model.launch(&batch).unwrap();
        assert_eq!(waits.load(Ordering::Relaxed), before, "{name}: a launch waits for nothing");
        batch.clear(); // the pass has what it needs
        let logits = model.wait(ticket).unwrap();
        assert_eq!(waits.load(Ordering::Relaxed), before + 1, "{name}: for the pass");
        let mut row = vec![f32::NAN; expected[0].len()];
        for index in [49, 0, 17] {
            model.read_logits(&logits, index, &mut row).unwrap();
            assert!(row == expected[index], "{name}: row {index}");
        }
        assert_eq!(waits.load(Ordering::Relaxed), before + 4, "{name}: for each row");
    }
}

#[test]
fn more_rows_than_are_held_come_in_any_order() {
    let checkpoint = committed("llama3");
    let options = model::LoadOptions { max_logit_rows: 3, ..options(WeightClass::Bf16) };
    let mut model = model::load(Remote::new(Reference::new()), &checkpoint, &options, &mut |_| {}).unwrap();
    let tokens = random_tokens(4, 20, model.config().vocab_size);
    let mut batch = Batch::default();
    push(&mut batch, &tokens, 0..20, &[0], Wanted::All);
    let expected = run_f32(&mut load(Reference::new(), &checkpoint, WeightClass::Bf16), &batch);
    let ticket = model.launch(&batch).unwrap();
    let logits = model.wait(ticket).unwrap();
    assert_eq!(logits.rows(), 20);
    let mut row = vec![f32::NAN; expected[0].len()];
    for index in (0..20).chain([19, 0, 1, 10, 9, 19, 0]) {
        model.read_logits(&logits, index, &mut row).unwrap();
        assert!(row == expected[index], "row {index}");
    }
    // The same of their best, selected on the device: of some rows none, of some more than there are.
    let counts = (0..20).map(|row| [1, 0, 5, 128][row % 4]).collect::<Vec<_>>();
    batch.best.clone_from(&counts);
    let ticket = model.launch(&batch).unwrap();
    let logits = model.wait(ticket).unwrap();
    for index in (0..20).chain([19, 0, 2, 10, 9, 19, 0]) {
        let (mut found, mut best) = (vec![(f32::NAN, 7)], Vec::new());
        let is_selected = model.read_best(&logits, index, &mut found).unwrap();
        assert_eq!(is_selected, counts[index] > 0, "row {index}");
        find_best(&expected[index], counts[index] as usize, &mut best);
        assert!(!is_selected || found == best, "row {index}: {found:?}, {best:?}");
    }
}

/// A block, a pass and its logits, in the order of the doors that they go through.
fn through_doors(model: &mut dyn Forward, batch: &Batch) -> Result<(), DeviceError> {
    let saved = saved_block(model, 0);
    let ticket = model.launch(batch)?;
    let logits = model.wait(ticket)?;
    model.read_logits(&logits, 0, &mut vec![0.0; model.config().vocab_size])?;
    assert!(model.read_best(&logits, 0, &mut Vec::new())?, "the batch asked for them");
    saved.bytes().map(drop)
}

fn saved_block(model: &dyn Forward, block: u32) -> Arc<dyn HostBuffer> {
    let mut buffer = model.host_buffer(vec![0; model.block_bytes()]);
    model.save_block(block, Arc::get_mut(&mut buffer).unwrap());
    buffer
}

#[test]
fn only_who_reads_a_saved_block_waits_and_it_is_as_it_was_when_it_was_saved() {
    let tokens = random_tokens(8, 40, 32);
    let write = |model: &mut dyn Forward, from: usize| {
        let mut batch = Batch::default();
        push(&mut batch, &tokens[from..], 0..8, &[3], Wanted::None);
        let ticket = model.launch(&batch).unwrap();
        model.wait(ticket).unwrap();
    };
    for precision in PRECISIONS {
        // gemma3 has two kinds of layers, so two caches.
        for name in ["llama3", "gemma3"] {
            let checkpoint = committed(name);
            let (class, kv_dtype) = precision;
            let mut reference = load_with_kv(Reference::new(), &checkpoint, class, kv_dtype);
            write(&mut reference, 0);
            let expected = saved_block(&reference, 3).bytes().unwrap().to_vec();
            assert!(expected.iter().any(|&byte| byte != 0), "{name}: there is something to save");

            let mut model = on_device(&checkpoint, precision);
            write(&mut model, 0);
            let waits = model.backend().waits();
            let before = waits.load(Ordering::Relaxed);
            let saved = saved_block(&model, 3);
            model.load_block(&*saved, 5);
            model.submit().unwrap();
            assert_eq!(waits.load(Ordering::Relaxed), before, "{name}: a save, a load and a submit wait for nothing");
            write(&mut model, 9);
            let again = saved_block(&model, 5);
            model.submit().unwrap();
            for buffer in [saved, again] {
                let read = std::thread::spawn(move || buffer.bytes().unwrap().to_vec());
                assert!(read.join().unwrap() == expected, "{name} in {precision:?}");
            }
            assert_eq!(waits.load(Ordering::Relaxed), before + 3, "{name}: who waits for a pass, and two readers");
        }
    }
}

/// Experts ask in the middle of a pass.
#[test]
fn a_lost_device_is_told_at_every_door_and_panics_at_none() {
    for name in ["llama3", "olmoe", "falcon-h1"] {
        let checkpoint = committed(name);
        for door in ["submit", "wait", "read", "read_best", "bytes"] {
            for after in 0..2 {
                let mut model = on_device(&checkpoint, PRECISIONS[0]);
                let tokens = random_tokens(6, 8, model.config().vocab_size);
                let mut batch = Batch::default();
                push(&mut batch, &tokens, 0..8, &[0], Wanted::Last);
                leave_where_kept(&mut batch, &model, None, &[(7, 1)]);
                batch.best = vec![1];
                *model.backend().loss.at.lock().unwrap() = Some((door, after));
                let turns = [(); 3].map(|()| through_doors(&mut model, &batch).err().map(|error| error.to_string()));
                let lost = turns.iter().position(Option::is_some);
                assert_eq!(lost, Some(after), "{name} {door}: {turns:?}");
                let said = turns.iter().flatten().all(|said| said.starts_with("a thread is lost (at "));
                assert!(said && turns.iter().flatten().count() == 3 - after, "{turns:?}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "logits of another pass than the last")]
fn logits_end_with_the_next_launch() {
    let mut model = on_device(&committed("llama3"), PRECISIONS[0]);
    let tokens = random_tokens(5, 8, model.config().vocab_size);
    let mut batch = Batch::default();
    push(&mut batch, &tokens, 0..8, &[0], Wanted::Last);
    let ticket = model.launch(&batch).unwrap();
    let logits = model.wait(ticket).unwrap();
    let next = model.launch(&batch).unwrap();
    model.wait(next).unwrap();
    let mut row = vec![0.0; model.config().vocab_size];
    model.read_logits(&logits, 0, &mut row).unwrap();
}
