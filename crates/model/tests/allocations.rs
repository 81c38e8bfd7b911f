//! A steady step allocates nothing, whatever the model is made of: all memory is taken at load.

use crate::common;

use allocation_counter::measure;
use common::*;
use kernels::WeightClass;
use model::draft::{self, Feature, Features, Medusa};
use model::sampler::{Allowed, History, SampleKey, Sampler};
use model::{Batch, Forward};
use protocol::sampling::Sampling;
use std::path::PathBuf;

#[test]
fn a_steady_step_allocates_nothing() {
    let without_states = ["llama3", "gemma2", "gemma3", "granite", "olmo2", "phi3", "mixtral", "qwen3-moe"];
    for checkpoint in without_states.into_iter().chain(["qwen3.5", "qwen3.5-moe", "qwen3-next"]) {
        for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
            let mut model = load(cpu(None, 1), &committed(checkpoint), class);
            let vocab_size = model.config().vocab_size;
            let tables: Vec<Vec<u32>> = (0..4).map(|sequence| (sequence * 8..sequence * 8 + 8).collect()).collect();
            let prompts: Vec<Vec<u32>> = (0..4).map(|seed| random_tokens(seed, 200, vocab_size)).collect();
            // Three sequences decode while the fourth brings a chunk.
            let batches: Vec<Batch> = (0..5)
                .map(|step| {
                    let mut batch = Batch::default();
                    for sequence in 0..3 {
                        let at = 100 + step;
                        push(&mut batch, &prompts[sequence], at..at + 1, &tables[sequence], Wanted::All);
                        // From one of two slots to the other.
                        let slots = [2 * sequence as u32, 2 * sequence as u32 + 1];
                        leave_where_kept(&mut batch, &model, Some(slots[step % 2]), &[(at, slots[(step + 1) % 2])]);
                    }
                    push(&mut batch, &prompts[3], step * 30..step * 30 + 30, &tables[3], Wanted::Last);
                    leave_where_kept(&mut batch, &model, None, &[(step * 30 + 7, 6), (step * 30 + 29, 7)]);
                    batch
                })
                .collect();
            let mut logits = vec![0.0; 4 * vocab_size];
            // The first steps size what grows to the largest step.
            for batch in &batches[..2] {
                model.forward(batch, &mut logits).unwrap();
            }
            let allocations =
                measure(|| batches[2..].iter().for_each(|batch| model.forward(batch, &mut logits).unwrap()));
            assert_eq!(allocations.count_total, 0, "{checkpoint} {class:?}");
        }
    }
}

/// A steady step with drafters: rows of the target on the host, heads and a layer behind it.
#[test]
fn a_steady_draft_allocates_nothing() {
    let drafts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/drafts");
    let open = |name: &str| draft::open(&drafts.join(name)).unwrap();
    let mut target = load(cpu(None, 1), &committed("llama3"), WeightClass::Bf16);
    let mut medusa = Medusa::load(&open("medusa-map"), &target, None).unwrap();
    let mut feature = Feature::load(&open("eagle3-midlayer"), &target, None).unwrap();
    target.tap(feature.taps()).unwrap();
    let (hidden, vocab) = (target.config().hidden_size, target.config().vocab_size);
    let prompt = random_tokens(1, 100, vocab);
    let batches = |count: usize, from: usize| -> Vec<Batch> {
        let batch = |step| {
            let mut batch = Batch::default();
            push(&mut batch, &prompt, from + step..from + step + count, &[0, 1, 2, 3], Wanted::Last);
            batch
        };
        (0..5).map(batch).collect()
    };
    let (whole, single) = (batches(8, 20), batches(1, 28));
    let mut tapped = vec![0.0; 8 * feature.taps().len() * hidden];
    let (mut row, mut own, mut logits) = (vec![0.0; hidden], vec![0.0; feature.hidden_size()], vec![0.0; vocab]);
    let mut step = |index: usize| {
        let ticket = target.launch(&whole[index]).unwrap();
        let done = target.wait(ticket).unwrap();
        target.read_hidden(&done, 0..1, &mut row).unwrap();
        medusa.propose(&row, 2).unwrap();
        (0..2).for_each(|head| medusa.read_logits(head, 0, &mut logits).unwrap());
        target.read_tapped(&done, 0..8, &mut tapped).unwrap();
        feature.forward(&whole[index], Features::Tapped(&tapped)).unwrap();
        feature.read_hidden(0..1, &mut own).unwrap();
        feature.forward(&single[index], Features::Own(&own)).unwrap();
        feature.read_logits(0, &mut logits).unwrap();
    };
    (0..2).for_each(&mut step);
    assert_eq!(measure(|| (2..5).for_each(&mut step)).count_total, 0);
}

/// The sampler of a steady step: every way to choose, after one token of each. What it does not cover is what is asked
/// for beyond the token (log probabilities, which are part of the answer) and a history that meets a token for the
/// first time.
#[test]
fn a_steady_sampler_allocates_nothing() {
    const VOCAB: usize = 5000;
    let default = Sampling { temperature: 0.8, ..Sampling::default() };
    let (presence_penalty, frequency_penalty, repetition_penalty) = (0.5, 0.25, 1.2);
    let ways = [
        Sampling { temperature: 0.0, ..default.clone() },
        default.clone(),
        Sampling { top_k: 40, ..default.clone() },
        Sampling { top_p: 0.9, ..default.clone() },
        Sampling { top_k: 40, top_p: 0.9, min_p: 0.05, ..default.clone() },
        Sampling { top_k: VOCAB as u32, min_p: 0.05, ..default.clone() },
        Sampling { presence_penalty, frequency_penalty, repetition_penalty, ..default.clone() },
        Sampling { logit_bias: vec![(7, 3.0), (4000, -100.0)], ..default },
    ];
    let mut history = History::new(&[1, 2, 3, 4000]);
    history.push(2);
    let row: Vec<f32> = (0..VOCAB).map(|id| ((id * 7919 % 1009) as f32 / 100.0).sin() * 9.0).collect();
    let mut sampler = Sampler::new(VOCAB);
    let mut logits = row.clone();
    let mut step = |position: u64| {
        for params in &ways {
            logits.copy_from_slice(&row);
            let key = SampleKey { seed: 11, stream: 0, position };
            sampler.sample(&mut logits, params, &history, Allowed::but(&[5, 6]), key).expect("there is a choice");
        }
    };
    step(0);
    let allocations = measure(|| (1..200).for_each(&mut step));
    assert_eq!(allocations.count_total, 0);
}
