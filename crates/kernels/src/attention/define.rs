//! Attention in plain loops: what every other path is judged against, and what runs where there are no vectors.

use super::tile::Tile;
use super::{Call, SPLIT};
use crate::kv_cache::{MAX_HEAD_DIM, Place};
use crate::lanes::{LANES, exp, round_bf16, softcap, softmax_weight, sum};
use std::ops::Range;

/// Numbers per step of [`dot`].
const STEP: usize = 32;

/// The sum of `a(i) * b(i)` for `i` in `0..len`, both bf16: per 32 numbers, even and odd products are accumulated in
/// two chains of fused multiply-adds from zero, and the sum of both is added to the total.
fn dot(len: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let mut total = 0.0f32;
    for step in (0..len).step_by(STEP) {
        let (mut even, mut odd) = (0.0f32, 0.0f32);
        for i in (step..len.min(step + STEP)).step_by(2) {
            even = a(i).mul_add(b(i), even);
            if i + 1 < len {
                odd = a(i + 1).mul_add(b(i + 1), odd);
            }
        }
        total += even + odd;
    }
    total
}

/// A softmax over some positions, not yet divided: maximum, sum of weights, weighted sum of values.
struct Partial {
    max: f32,
    sum: f32,
    values: [f32; MAX_HEAD_DIM],
}

/// All rows of a tile.
pub(super) fn tile(call: &Call<'_>, tile: &Tile) {
    let (layout, span) = (call.args.layout, tile.span(call));
    for row in tile.rows.clone() {
        let (token, head) = (row / call.group(), tile.kv_head * call.group() + row % call.group());
        let batch_row = span.first_row + token;
        let query = &call.args.qkv[batch_row * layout.qkv_width() + head * layout.head_dim..];
        // SAFETY: each row and head is in one tile.
        let out = unsafe { call.out(batch_row, head) };
        attend_row(call, span.blocks, tile.kv_head, query, span.start + token, out);
    }
}

/// One query head at `position`. `out`: `[head_dim]`.
fn attend_row(call: &Call<'_>, blocks: &[u32], kv_head: usize, query: &[f32], position: usize, out: &mut [f32]) {
    let head_dim = out.len();
    let mut rounded = [0.0; MAX_HEAD_DIM];
    rounded.iter_mut().zip(&query[..head_dim]).for_each(|(to, &from)| *to = round_bf16(from));
    let first = call.args.rule.first_seen(position);
    let split = |start: usize| {
        let seen = first.saturating_sub(start)..(position + 1 - start).min(SPLIT);
        split(call, blocks, kv_head, &rounded, start, seen)
    };
    let first_split = first / SPLIT * SPLIT;
    let mut total = split(first_split);
    for start in (first_split + SPLIT..=position).step_by(SPLIT) {
        fold(&mut total, &split(start), head_dim);
    }
    for (out, value) in out.iter_mut().zip(total.values) {
        *out = value / total.sum;
    }
}

/// The split at `start`, of which the row sees the positions `start + seen`.
fn split(call: &Call<'_>, blocks: &[u32], kv_head: usize, query: &[f32], start: usize, seen: Range<usize>) -> Partial {
    let (kv, head_dim, rule) = (call.kv, call.args.layout.head_dim, call.args.rule);
    let block_size = kv.shape().block_size;
    let place = |j: usize| {
        let slot = blocks[(start + j) / block_size] as usize * block_size + (start + j) % block_size;
        Place { layer: call.args.layer, slot, kv_head }
    };

    let mut scores = [0.0; SPLIT];
    for j in seen.clone() {
        let place = place(j);
        let score = dot(head_dim, |d| query[d], |d| kv.key(place, d)) * rule.scale;
        scores[j] = if let Some(cap) = rule.softcap { softcap(score, cap) } else { score };
    }
    let max = scores[seen.clone()].iter().fold(f32::NEG_INFINITY, |max, &score| if max > score { max } else { score });

    let mut weights = [0.0; SPLIT];
    let mut lanes = [0.0; LANES];
    for j in seen.clone() {
        weights[j] = softmax_weight(scores[j] - max);
        lanes[j % LANES] += weights[j];
    }

    let mut values = [0.0; MAX_HEAD_DIM];
    for (d, value) in values[..head_dim].iter_mut().enumerate() {
        // A hidden value is never read; whatever it is, the product with the weight 0 would be 0.
        *value = dot(seen.end, |j| weights[j], |j| if seen.contains(&j) { kv.value(place(j), d) } else { 0.0 });
    }
    Partial { max, sum: sum(lanes), values }
}

/// Joins the split that follows.
fn fold(total: &mut Partial, next: &Partial, head_dim: usize) {
    let max = if total.max > next.max { total.max } else { next.max };
    let (keep, join) = (exp(total.max - max), exp(next.max - max));
    total.max = max;
    total.sum = total.sum.mul_add(keep, next.sum * join);
    for (value, &next) in total.values[..head_dim].iter_mut().zip(&next.values) {
        *value = value.mul_add(keep, next * join);
    }
}
