//! Layers with a state beside their definition: what they give, and what they leave in which slot.

use crate::operations::{SEED, get, put};

use kernels::{
    Backend, Convolution, DeltaRows, DeltaRule, DeltaShape, GatedConvolution, HostBuffer, Mamba, MambaShape,
    OutputNorm, Reference, StateSave, StateShape, StateSpan, StepArrays,
};
use testing::Dice;
use vulkan::Vulkan;

const SLOTS: usize = 7;
/// Numbers of each slot before the layer's state, and behind it.
const AROUND: usize = 3;
const ROWS: usize = 27;

const fn save(row: u32, slot: u32) -> StateSave {
    StateSave { row, slot }
}

const SAVES: [StateSave; 6] = [save(3, 2), save(3, 4), save(8, 0), save(24, 5), save(25, 1), save(26, 6)];

/// A prompt that leaves states within and behind it, two tokens that go on from one slot, and a sequence without rows.
fn spans() -> [StateSpan<'static>; 4] {
    let span = |first_row, num_rows, from, saves| StateSpan { first_row, num_rows, from, saves };
    [
        span(0, 25, None, &SAVES[..4]),
        span(25, 1, Some(3), &SAVES[4..5]),
        span(26, 0, Some(3), &[]),
        span(26, 1, Some(3), &SAVES[5..]),
    ]
}

/// The bits of what an operation on a backend's states gives, and of all slots behind it. Each slot begins with
/// numbers.
fn with_states<B: Backend>(
    backend: &B,
    numbers: usize,
    operation: impl FnOnce(&B::Step<'_>, &mut B::States) -> Vec<u32>,
) -> Vec<u32> {
    let shape = StateShape { slots: SLOTS, numbers: numbers + 2 * AROUND };
    let (mut states, mut dice) = (backend.states(shape).unwrap(), Dice::new(SEED));
    for slot in 0..SLOTS as u32 {
        let bytes = dice.normals(shape.numbers).into_iter().flat_map(f32::to_ne_bytes).collect();
        backend.load_state(&backend.host_buffer(bytes), &mut states, slot);
    }
    let spans = spans();
    let rows = vec![0; ROWS];
    let arrays = StepArrays { positions: &rows, slots: &rows, states: &spans, ..StepArrays::default() };
    let mut all = operation(&backend.begin(arrays), &mut states);
    for slot in 0..SLOTS as u32 {
        let mut bytes = backend.host_buffer(vec![0; shape.slot_bytes()]);
        backend.save_state(&states, slot, &mut bytes);
        backend.submit().unwrap();
        all.extend(bytes.bytes().unwrap().as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)));
    }
    all
}

/// A convolution in place, with and without bias and activation, and one between gates.
fn convolved<B: Backend>(backend: &B, taps: usize, channels: usize) -> Vec<u32> {
    let (mut dice, width) = (Dice::new(SEED), channels + 5);
    let numbers = (taps - 1) * channels;
    let [weight, bias] = [taps * channels, channels].map(|len| backend.vector(&dice.normals(len)).unwrap());
    let (weight, state) = (&weight, AROUND);
    let [rows, parts] = [width, 3 * channels].map(|width| dice.normals(ROWS * width));
    let mut all = Vec::new();
    for (bias, silu) in [(None, true), (Some(&bias), false)] {
        all.extend(with_states(backend, numbers, |step, states| {
            let mut rows = put(backend, &rows, width);
            let how = Convolution { row_width: width, channels, taps, weight, bias, silu, state };
            backend.convolve(step, how, &mut rows, states);
            get(backend, &rows, ROWS, width)
        }));
        all.extend(with_states(backend, numbers, |step, states| {
            let (rows, mut out) = (put(backend, &parts, 3 * channels), backend.rows(ROWS, channels).unwrap());
            let how = GatedConvolution { channels, taps, weight, bias, state };
            backend.convolve_gated(step, how, &rows, states, &mut out);
            get(backend, &out, ROWS, channels)
        }));
    }
    all
}

fn delta<B: Backend>(backend: &B, shape: DeltaShape) -> Vec<u32> {
    let mut dice = Dice::new(SEED);
    let rates: Vec<f32> = dice.normals(shape.value_heads).iter().map(|x| x.abs() + 0.1).collect();
    let biases = if shape.by_key { shape.key_width() } else { shape.value_heads };
    let [dt_bias, norm] = [biases, shape.value_dim].map(|len| backend.vector(&dice.normals(len)).unwrap());
    let rates = &backend.vector(&rates).unwrap();
    let how = DeltaRule { shape, rates, dt_bias: &dt_bias, norm: &norm, eps: 1e-6, state: AROUND };
    let widths = [shape.row_width(), shape.gates_width(), shape.decays_width()];
    let [rows, mut gates, decays] = widths.map(|width| dice.normals(ROWS * width));
    // What softplus takes as it is, and what it takes for almost nothing.
    gates.iter_mut().enumerate().for_each(|(i, x)| *x *= [1.0, 30.0][usize::from(i % 7 == 3)]);
    with_states(backend, shape.state_numbers(), |step, states| {
        let [mut rows, mut gates] =
            [(&rows, widths[0]), (&gates, widths[1])].map(|(of, width)| put(backend, of, width));
        let mut decays = shape.by_key.then(|| put(backend, &decays, widths[2]));
        let mut out = backend.rows(ROWS, shape.value_width()).unwrap();
        let rows = DeltaRows { rows: &mut rows, gates: &mut gates, decays: decays.as_mut() };
        backend.delta_rule(step, how, rows, states, &mut out);
        get(backend, &out, ROWS, shape.value_width())
    })
}

fn by_steps<B: Backend>(backend: &B, shape: MambaShape, output: OutputNorm, norm_groups: usize) -> Vec<u32> {
    let mut dice = Dice::new(SEED);
    let rates: Vec<f32> = dice.normals(shape.heads).iter().map(|x| x.abs() + 0.1).collect();
    let lens = [shape.heads, shape.heads, shape.inner()];
    let [dt_bias, skip, norm] = lens.map(|len| backend.vector(&dice.normals(len)).unwrap());
    let how = Mamba {
        shape,
        rates: &backend.vector(&rates).unwrap(),
        step_factor: 0.75,
        dt_bias: &dt_bias,
        skip: &skip,
        gate_factor: 1.25,
        output,
        norm: (output != OutputNorm::None).then_some(&norm),
        norm_groups,
        eps: 1e-5,
        state: AROUND,
    };
    let [rows, steps] = [shape.row_width(), shape.heads].map(|width| dice.normals(ROWS * width));
    with_states(backend, shape.state_numbers(), |step, states| {
        let (mut rows, mut steps) = (put(backend, &rows, shape.row_width()), put(backend, &steps, shape.heads));
        let mut out = backend.rows(ROWS, shape.inner()).unwrap();
        backend.mamba(step, how, (&mut rows, &mut steps), states, &mut out);
        get(backend, &out, ROWS, shape.inner())
    })
}

/// Heads that share keys or not, and widths that fill no workgroup, one or several, as published models have them.
const DELTAS: [DeltaShape; 5] = [
    delta_shape([2, 6], [16, 48], false),
    delta_shape([3, 3], [48, 48], true),
    delta_shape([1, 2], [256, 80], false),
    delta_shape([1, 1], [128, 128], true),
    delta_shape([1, 1], [48, 16], false),
];

const fn delta_shape(
    [key_heads, value_heads]: [usize; 2],
    [key_dim, value_dim]: [usize; 2],
    by_key: bool,
) -> DeltaShape {
    DeltaShape { key_heads, value_heads, key_dim, value_dim, by_key }
}

/// As above; what is normed together is less than all heads, or more than a workgroup takes at a time.
const MAMBAS: [([usize; 4], OutputNorm, usize); 5] = [
    ([6, 16, 2, 48], OutputNorm::AfterGate, 2),
    ([1, 80, 1, 16], OutputNorm::None, 1),
    ([10, 112, 1, 16], OutputNorm::BeforeGate, 1),
    ([2, 64, 1, 256], OutputNorm::AfterGate, 1),
    ([3, 32, 3, 32], OutputNorm::BeforeGate, 3),
];

pub(crate) fn rows_change_states_and_leave_them((vulkan, is_slow): (&Vulkan, bool), reference: &Reference, what: &str) {
    let n = if is_slow { 5 } else { 1 };
    for (taps, channels) in testing::part_of([(4, 80), (2, 16), (8, 144), (3, 64)], n) {
        let same = convolved(vulkan, taps, channels) == convolved(reference, taps, channels);
        assert!(same, "{what}: {taps} taps of {channels} channels");
    }
    for shape in testing::part_of(DELTAS, n) {
        assert!(delta(vulkan, shape) == delta(reference, shape), "{what}: {shape:?}");
    }
    for ([heads, head_dim, groups, state_dim], output, norm_groups) in testing::part_of(MAMBAS, n) {
        let shape = MambaShape { heads, head_dim, groups, state_dim };
        let [found, expected] =
            [by_steps(vulkan, shape, output, norm_groups), by_steps(reference, shape, output, norm_groups)];
        assert!(found == expected, "{what}: {shape:?}, {output:?}");
    }
}
