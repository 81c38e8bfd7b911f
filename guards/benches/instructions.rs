//! How many instructions the hot operations take, each with a limit: about a tenth above what it took when the limit
//! was set. Over the limit: make it cheaper, or raise the limit in the commit that says why.

use checkpoint::{Checkpoint, Source};
use guards::crowd::{Crowd, Drafter};
use guards::{cpu, matrix, values};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use kernels::{
    Attention, AttentionRule, AttentionSpan, Cpu, Device, HeadLayout, HeadNorms, HostBackend, KvCache, KvDtype,
    KvShape, Out, PackedMatrix, RotateAndStore, WeightClass,
};
use ledger::Ledger;
use model::sampler::{Allowed, History, SampleKey, Sampler};
use model::{Batch, Forward, KvBudget, LoadOptions, Runner, Span};
use protocol::sampling::Sampling;
use protocol::{Nanos, Priority, RequestId, StopRules, Targets};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits, Request, RowOutput, Scheduler, Step, StepOutput, StepRecord};
use std::hint::black_box;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, instructions)])).clone()
}

struct Product {
    cpu: Cpu,
    matrix: PackedMatrix,
    x: Vec<f32>,
    out: Vec<f32>,
}

/// A product of 1,024 x 1,024, scratch memory already there.
fn product(class: WeightClass, rows: usize) -> Product {
    let cpu = cpu();
    let matrix = matrix(&cpu, class, 1024, 1024);
    let (x, mut out) = (values(rows * 1024, 2), vec![0.0; rows * 1024]);
    cpu.linear(&x, &matrix, None, Out::Store(&mut out));
    Product { cpu, matrix, x, out }
}

#[library_benchmark]
#[bench::int8_1_row(args = (WeightClass::Int8, 1), setup = product, config = at_most(321_000))]
#[bench::int8_64_rows(args = (WeightClass::Int8, 64), setup = product, config = at_most(13_700_000))]
#[bench::bf16_1_row(args = (WeightClass::Bf16, 1), setup = product, config = at_most(650_000))]
#[bench::int4_1_row(args = (WeightClass::Int4, 1), setup = product, config = at_most(366_000))]
#[bench::int4_64_rows(args = (WeightClass::Int4, 64), setup = product, config = at_most(15_400_000))]
#[bench::bf16_64_rows(args = (WeightClass::Bf16, 64), setup = product, config = at_most(28_400_000))]
fn linear(mut product: Product) -> Product {
    let Product { cpu, matrix, x, out } = &mut product;
    cpu.linear(black_box(x), matrix, None, Out::Store(out));
    product
}

struct Attend {
    cpu: Cpu,
    kv: KvCache,
    blocks: Vec<u32>,
    qkv: Vec<f32>,
    out: Vec<f32>,
    rows: usize,
}

/// The heads of a 0.5B model.
const LAYOUT: HeadLayout =
    HeadLayout { num_heads: 14, num_kv_heads: 2, head_dim: 64, gates: 0, queries_only: false, latent: None };
/// Tokens that the last row sees.
const CONTEXT: usize = 2048;

/// `rows` at the end of a sequence of 2,048 tokens.
fn attention(dtype: KvDtype, rows: usize) -> Attend {
    let cpu = cpu();
    let shape =
        KvShape { dtype, layers: 1, blocks: CONTEXT / 32, block_size: 32, num_kv_heads: 2, head_dim: 64, latent: None };
    let mut kv = cpu.kv_cache(shape).expect("memory");
    let positions: Vec<u32> = (0..CONTEXT as u32).collect();
    let mut all = values(CONTEXT * LAYOUT.qkv_width(), 4);
    let store = RotateAndStore {
        qkv: &mut all,
        layout: LAYOUT,
        head_norms: HeadNorms::None,
        rope: None,
        positions: &positions,
        slots: &positions,
        layer: 0,
    };
    cpu.rotate_and_store(store, &mut kv);
    let (qkv, out) = (values(rows * LAYOUT.qkv_width(), 5), vec![0.0; rows * LAYOUT.q_width()]);
    let mut attend = Attend { cpu, kv, blocks: (0..CONTEXT as u32 / 32).collect(), qkv, out, rows };
    attend_once(&mut attend);
    attend
}

fn attend_once(attend: &mut Attend) {
    let Attend { cpu, kv, blocks, qkv, out, rows } = attend;
    let span = AttentionSpan { first_row: 0, num_rows: *rows, start: CONTEXT - *rows, blocks };
    let rule = AttentionRule::of_width(LAYOUT.head_dim);
    cpu.attend(Attention { qkv, layout: LAYOUT, rule, sinks: None, spans: &[span], layer: 0 }, kv, out);
}

#[library_benchmark]
#[bench::bf16_1_row(args = (KvDtype::Bf16, 1), setup = attention, config = at_most(2_030_000))]
#[bench::bf16_64_rows(args = (KvDtype::Bf16, 64), setup = attention, config = at_most(123_000_000))]
#[bench::int8_1_row(args = (KvDtype::Int8, 1), setup = attention, config = at_most(1_720_000))]
#[bench::int8_64_rows(args = (KvDtype::Int8, 64), setup = attention, config = at_most(103_000_000))]
fn attend(mut attend: Attend) -> Attend {
    attend_once(black_box(&mut attend));
    attend
}

struct Pass {
    model: Runner<Cpu>,
    batch: Batch,
    logits: Vec<f32>,
}

/// `rows` at the end of a sequence of 256 tokens, in a model so small that what lies around its products counts.
fn pass(rows: u32) -> Pass {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/model/tests/data/llama3");
    let checkpoint = Checkpoint::open(Source::Directory(directory.into())).expect("a committed checkpoint");
    let options = LoadOptions {
        weights: WeightClass::Int8,
        as_stored: false,
        max_rows: 256,
        max_logit_rows: 1,
        max_model_len: None,
        kv_blocks: KvBudget::Blocks(8),
        block_size: 32,
        image_directory: None,
        kv_dtype: KvDtype::Bf16,
        adapters: model::AdapterRoom::default(),
        state_slots: 0,
        expert_memory: None,
    };
    let model = model::load(cpu(), &checkpoint, &options, &mut |_| {}).expect("memory");
    let logits = vec![0.0; model.config().vocab_size];
    let mut pass = Pass { model, batch: Batch::default(), logits };
    fill(&mut pass.batch, 0..256);
    pass.model.forward(&pass.batch, &mut pass.logits).expect("a CPU is not lost");
    fill(&mut pass.batch, 256 - rows..256);
    pass.model.forward(&pass.batch, &mut pass.logits).expect("a CPU is not lost");
    pass
}

/// These positions of a sequence in the first blocks; logits of the last.
fn fill(batch: &mut Batch, positions: std::ops::Range<u32>) {
    batch.clear();
    batch.token_ids.extend(positions.clone().map(|position| position % 64));
    batch.positions.extend(positions.clone());
    batch.slots.extend(positions.clone());
    batch.block_tables.extend(0..8);
    let num_rows = positions.len() as u32;
    batch.spans.push(Span {
        first_row: 0,
        num_rows,
        start: positions.start,
        table: 0..8,
        adapter: None,
        state: None,
        saves: 0..0,
    });
    batch.logit_rows.push(num_rows - 1);
}

#[library_benchmark]
#[bench::decode_1_row(args = (1), setup = pass, config = at_most(325_000))]
#[bench::prefill_64_rows(args = (64), setup = pass, config = at_most(12_900_000))]
fn forward(mut pass: Pass) -> Pass {
    let Pass { model, batch, logits } = &mut pass;
    model.forward(black_box(batch), logits).expect("a CPU is not lost");
    pass
}

struct Draw {
    sampler: Sampler,
    row: Vec<f32>,
    params: Sampling,
    history: History,
}

/// A row of a vocabulary of 151,936, the sampler's memory already there.
fn draw(temperature: f32, top_p: f32) -> Draw {
    let params = Sampling { temperature, top_p, ..Sampling::default() };
    let (sampler, row) = (Sampler::new(151_936), values(151_936, 3));
    let mut draw = Draw { sampler, row, params, history: History::new(&[]) };
    sample_one(&mut draw);
    draw
}

fn sample_one(draw: &mut Draw) -> u32 {
    let key = SampleKey { seed: 1, stream: 0, position: 7 };
    let Draw { sampler, row, params, history } = draw;
    sampler.sample(row, params, history, Allowed::default(), key).expect("finite logits").token
}

#[library_benchmark]
#[bench::greedy(args = (0.0, 1.0), setup = draw, config = at_most(835_000))]
#[bench::top_p(args = (1.0, 0.9), setup = draw, config = at_most(21_000_000))]
fn sample(mut draw: Draw) -> Draw {
    black_box(sample_one(black_box(&mut draw)));
    draw
}

/// Decoding sequences, and sequences that wait for a seat.
fn scheduler(decoding: u64, waiting: u64) -> (Scheduler, StepOutput) {
    let limits = Limits {
        block_size: 32,
        num_blocks: 8192,
        max_model_len: 4096,
        max_num_seqs: 64,
        max_num_batched_tokens: 4096,
        max_prefill_chunk: 512,
        max_prefill_seqs: 64,
        max_queued_requests: 512,
        max_queued_tokens: 100_000,
        enable_prefix_caching: true,
        states: None,
        whole_prompts: false,
        hash_key: [5; 32],
    };
    let mut scheduler = Scheduler::new(limits).expect("good limits");
    for id in 0..decoding + waiting {
        scheduler.admit(request(id)).expect("there is room");
    }
    let mut output = StepOutput::default();
    for _ in 0..if decoding > 0 { 4 } else { 0 } {
        one_step(&mut scheduler, &mut output);
    }
    (scheduler, output)
}

fn request(id: u64) -> Request {
    Request {
        id: RequestId(id),
        prompt: (0..50).map(|token| token + id as u32 * 100).collect(),
        num_answers: 1,
        stop: StopRules { max_tokens: 1000, min_tokens: 0, stop_token_ids: vec![1] },
        priority: Priority(0),
        salt: 0,
        use_prefix_cache: true,
        tenant: 0,
        targets: Targets::default(),
        arrived: Nanos(0),
    }
}

fn one_step(scheduler: &mut Scheduler, output: &mut StepOutput) -> StepRecord {
    let (mut step, mut events, mut record) = (Step::default(), Vec::new(), StepRecord::default());
    scheduler.schedule_into(Nanos(1), &mut step);
    output.step = step.id;
    output.rows.clear();
    let sampled = step.rows().filter(|rows| rows.samples > 0);
    output.rows.extend(sampled.map(|rows| RowOutput { seq: rows.seq, token: 5000 }));
    scheduler.complete_into(output, Nanos(2), &mut events, &mut record);
    record
}

#[library_benchmark]
#[bench::decode_64_sequences(args = (64, 0), setup = scheduler, config = at_most(68_500))]
#[bench::decode_64_and_200_wait(args = (64, 200), setup = scheduler, config = at_most(69_500))]
fn schedule((mut scheduler, mut output): (Scheduler, StepOutput)) -> (Scheduler, StepOutput) {
    one_step(&mut scheduler, &mut output);
    (scheduler, output)
}

// A step of 256 streams with 8,192 tokens each: plan and results; where drafts are offered for all, with them.
#[library_benchmark]
#[bench::without(args = (Drafter::Off), setup = Crowd::new, config = at_most(281_000))]
#[bench::with_offers(args = (Drafter::Made), setup = Crowd::new, config = at_most(775_000))]
#[bench::looked_up(args = (Drafter::LookedUp), setup = Crowd::new, config = at_most(1_830_000))]
fn schedule_crowd(mut crowd: Crowd) -> Crowd {
    crowd.step();
    crowd
}

/// The same streams, each with one token more than at the last lookup.
fn one_new_token_each() -> Crowd {
    let mut crowd = Crowd::new(Drafter::LookedUp);
    crowd.plan();
    crowd.propose();
    crowd.complete();
    crowd
}

#[library_benchmark]
#[bench::one_new_token_each(setup = one_new_token_each, config = at_most(1_190_000))]
fn look_up(mut crowd: Crowd) -> Crowd {
    crowd.look();
    crowd
}

/// The ledger of 64 streams and of requests that wait for a seat, in the middle of it, and the next step.
fn accounts(waiting: u64) -> (Ledger, CostModel, StepRecord) {
    let cost = CostModel::new(
        (0..12).map(|at| Knot { rows: 1 << at, seconds: 0.001 * f64::from(1 + at) }).collect(),
        Terms::default(),
    );
    let (mut scheduler, mut output) = scheduler(0, 0);
    let mut ledger = Ledger::new(1024);
    for id in 0..64 + waiting {
        ledger.admit(&request(id));
        scheduler.admit(request(id)).expect("there is room");
    }
    for _ in 0..4 {
        let record = one_step(&mut scheduler, &mut output);
        ledger.step(&record, Some(&cost), &mut |_| {});
    }
    let mut record = one_step(&mut scheduler, &mut output);
    (record.scheduled_at, record.completed_at) = (Nanos(1_000_000), Nanos(2_000_000));
    (ledger, cost, record)
}

#[library_benchmark]
#[bench::decode_64_sequences(args = (0), setup = accounts, config = at_most(113_500))]
#[bench::decode_64_and_200_wait(args = (200), setup = accounts, config = at_most(146_500))]
fn account((mut ledger, cost, record): (Ledger, CostModel, StepRecord)) -> (Ledger, CostModel, StepRecord) {
    ledger.step(black_box(&record), Some(&cost), &mut |_| {});
    (ledger, cost, record)
}

library_benchmark_group!(name = hot; benchmarks = linear, attend, forward, sample, schedule, schedule_crowd, look_up, account);
main!(library_benchmark_groups = hot);
