//! Int4 by inputs: the same bits from every implementation, the reported error is the error of the products, and it is
//! less than with independent rounding of each weight.

use kernels::Isa;
use kernels::quant::{Factor, Gram, ROUNDED_ROWS, ScaleGrid, quantize_int4_row};
use kernels::threads::{Pool, max_threads};
use testing::Dice;

const GRIDS: [ScaleGrid; 3] = [ScaleGrid::Ratios(15), ScaleGrid::Ratios(127), ScaleGrid::Half];

/// Inputs of this width, `[rows, width]`: each is mixed from a few, so that they correlate; if `with_dead`, every
/// seventh is always zero.
fn inputs(seed: u64, rows: usize, width: usize, with_dead: bool) -> Vec<f32> {
    let mut random = Dice::new(seed);
    let (few, mixing) = (width / 4, random.normals(width / 4 * width));
    let mut x = Vec::new();
    for _ in 0..rows {
        let (causes, own) = (random.normals(few), random.normals(width));
        for column in 0..width {
            let mixed: f32 =
                causes.iter().zip(mixing.chunks_exact(width)).map(|(cause, row)| cause * row[column]).sum();
            x.push(if with_dead && column % 7 == 3 { 0.0 } else { mixed + 0.3 * own[column] });
        }
    }
    x
}

fn gram(pool: &Pool, isa: Isa, x: &[f32], width: usize) -> Gram {
    let mut gram = Gram::new(width);
    x.chunks(300 * width).for_each(|rows| gram.add(pool, isa, rows, &[1.0; 300]));
    gram
}

/// Codes, scales, and the reported error.
fn round(factor: &Factor, isa: Isa, grid: ScaleGrid, rows: &[f32]) -> (Vec<i8>, Vec<f32>, f64) {
    let (mut q, mut scales) = (vec![0; rows.len()], vec![0.0; rows.len() / 32]);
    let error = factor.round(isa, grid, rows, &mut q, &mut scales);
    (q, scales, error)
}

/// What codes stand for.
fn restored(q: &[i8], scales: &[f32]) -> Vec<f32> {
    q.chunks(32).zip(scales).flat_map(|(q, scale)| q.iter().map(move |q| f32::from(*q) * scale)).collect()
}

/// Squared error of the products of `rows` and `others` with every input.
fn products_error(x: &[f32], rows: &[f32], others: &[f32], width: usize) -> f64 {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
    let pairs = || rows.chunks_exact(width).zip(others.chunks_exact(width));
    x.chunks_exact(width).flat_map(|x| pairs().map(move |(a, b)| (dot(x, a) - dot(x, b)).powi(2))).sum()
}

#[test]
fn every_implementation_rounds_to_the_same_codes() {
    for (width, rows) in [(32, 1), (96, 5), (320, ROUNDED_ROWS)] {
        let x = inputs(7, 400, width, true);
        let weights = Dice::new(8).normals(rows * width);
        for grid in GRIDS {
            let one = Pool::new(1).unwrap();
            let defined = gram(&one, Isa::Scalar, &x, width).factor(&one, Isa::Scalar, 0.01).unwrap();
            let wanted = round(&defined, Isa::Scalar, grid, &weights);
            for isa in Isa::available() {
                for threads in 1..=max_threads().min(2) {
                    let pool = Pool::new(threads).unwrap();
                    let factor = gram(&pool, isa, &x, width).factor(&pool, isa, 0.01).unwrap();
                    let found = round(&factor, isa, grid, &weights);
                    assert!(found == wanted, "{grid:?}, width {width}, {}, {threads} threads", isa.name());
                }
            }
        }
    }
}

#[test]
fn errors_are_made_good_where_inputs_correlate() {
    let (pool, isa, width) = (Pool::new(1).unwrap(), Isa::best(), 256);
    let (x, held_out) = (inputs(1, 1500, width, false), inputs(1, 2000, width, false).split_off(1500 * width));
    let weights = Dice::new(2).normals(ROUNDED_ROWS * width);
    let mut plain = Vec::new();
    for row in weights.chunks_exact(width) {
        let (mut q, mut ratios) = (vec![0; width], vec![0; width / 32]);
        let scale = quantize_int4_row(row, &mut q, &mut ratios);
        let scales: Vec<f32> = ratios.iter().map(|&ratio| f32::from(ratio) * scale).collect();
        plain.extend(restored(&q, &scales));
    }
    let sums = gram(&pool, isa, &x, width);
    let factor = sums.factor(&pool, isa, 0.01).unwrap();
    for grid in GRIDS {
        let (q, scales, reported) = round(&factor, isa, grid, &weights);
        let found = restored(&q, &scales);
        let error = products_error(&x, &weights, &found, width);
        // The reported error includes the damping.
        assert!((error * 0.999..error * 1.3).contains(&reported), "{grid:?}: {reported} reported, {error} measured");
        for x in [&x, &held_out] {
            let (error, before) =
                (products_error(x, &weights, &found, width), products_error(x, &weights, &plain, width));
            assert!(error < 0.4 * before, "{grid:?}: {error}, and {before} without");
        }
    }
    // Without correlations there is nothing to make good; what is used more is still rounded better.
    let (q, scales, _) = round(&Factor::of_diagonal(&sums.diagonal()), isa, ScaleGrid::Half, &weights);
    let (error, before) =
        (products_error(&x, &weights, &restored(&q, &scales), width), products_error(&x, &weights, &plain, width));
    assert!(error < 1.1 * before, "{error}, and {before} without");
}

/// Rows of numbers that a file can hold, whatever the inputs are.
#[test]
fn odd_inputs_do_no_harm() {
    let (pool, isa, width) = (Pool::new(1).unwrap(), Isa::best(), 64);
    let weights = Dice::new(3).normals(4 * width);
    let dead = |x: &mut Vec<f32>| x.iter_mut().enumerate().for_each(|(at, x)| *x *= f32::from(u8::from(at % 64 > 40)));
    type Case<'c> = (&'c str, &'c dyn Fn(&mut Vec<f32>), bool);
    let table: [Case<'_>; 5] = [
        ("most columns dead", &dead, true),
        ("all dead", &|x| x.fill(0.0), false),
        ("one row", &|x| x.truncate(width), true),
        ("a NaN", &|x| x[70] = f32::NAN, false),
        ("infinite", &|x| x[3] = f32::INFINITY, false),
    ];
    for (name, change, factorizes) in table {
        let mut x = inputs(4, 50, width, false);
        change(&mut x);
        let sums = gram(&pool, isa, &x, width);
        let factor = sums.factor(&pool, isa, 0.01);
        assert_eq!(factor.is_some(), factorizes, "{name}");
        let factor = factor.unwrap_or_else(|| Factor::of_diagonal(&sums.diagonal()));
        for grid in GRIDS {
            let (q, scales, _) = round(&factor, isa, grid, &weights);
            assert!(q.iter().all(|q| (-8..=7).contains(q)) && scales.iter().all(|scale| scale.is_finite()), "{name}");
            let found = restored(&q, &scales);
            let worst = found.iter().zip(&weights).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1.5, "{name}: a weight is off by {worst}");
        }
    }
    // Weights of zero stay what they are.
    let factor = gram(&pool, isa, &inputs(5, 50, width, false), width).factor(&pool, isa, 0.01).unwrap();
    for grid in GRIDS {
        let (q, scales, error) = round(&factor, isa, grid, &[0.0; 64]);
        assert!(restored(&q, &scales).iter().all(|x| *x == 0.0) && error == 0.0, "{grid:?}");
    }
}
