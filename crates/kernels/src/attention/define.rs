//! Attention in plain loops: the reference for every other path, and the path of CPUs without vectors.

use super::tile::Tile;
use super::{Call, SPLIT};
use crate::kv_cache::{KvDtype, KvPlace, MAX_HEAD_DIM};
use crate::quant::quantize_row;
use crate::simd::{LANES, MAX_WEIGHT, exp, round_bf16, softcap, softmax_weight, sum, unrounded_weight, weight_digits};
use crate::spread::{gather, spread};
use std::ops::Range;

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
        let row = Row { query: &query[..layout.head_dim], seen: call.seen(span, token), head };
        attend_row(call, span.blocks, tile.kv_head, &row, out);
    }
}

/// One query head of a row.
struct Row<'a> {
    /// `[head_dim]`.
    query: &'a [f32],
    /// Positions that it sees.
    seen: Range<usize>,
    /// Its index.
    head: usize,
}

/// `out`: `[head_dim]`.
fn attend_row(call: &Call<'_>, blocks: &[u32], kv_head: usize, row: &Row<'_>, out: &mut [f32]) {
    let (value_dim, Row { query, seen, head }) = (out.len(), row);
    let split = |start: usize| {
        let seen = seen.start.saturating_sub(start)..(seen.end - start).min(SPLIT);
        split(call, blocks, kv_head, query, start, seen)
    };
    let first_split = seen.start / SPLIT * SPLIT;
    let mut total = split(first_split);
    for start in (first_split + SPLIT..seen.end).step_by(SPLIT) {
        fold(&mut total, &split(start), value_dim);
    }
    if let Some(sinks) = call.args.sinks {
        fold(&mut total, &Partial { max: sinks[*head], sum: 1.0, values: [0.0; MAX_HEAD_DIM] }, value_dim);
    }
    for (out, value) in out.iter_mut().zip(total.values) {
        *out = value / total.sum;
    }
    if call.kv.shape().dtype == KvDtype::Int8 {
        gather(out, call.kv.shape().run());
    }
}

/// The split at `start`, of which the row sees the positions `start + seen`.
fn split(call: &Call<'_>, blocks: &[u32], kv_head: usize, query: &[f32], start: usize, seen: Range<usize>) -> Partial {
    let block_size = call.kv.shape().block_size;
    let place = |j: usize| {
        let slot = blocks[(start + j) / block_size] as usize * block_size + (start + j) % block_size;
        KvPlace { layer: call.args.layer, slot, kv_head }
    };
    match call.kv.shape().dtype {
        KvDtype::Bf16 => bf16_split(call, query, seen, place),
        KvDtype::Int8 => int8_split(call, query, seen, place),
    }
}

/// The capped scores of the visible positions, and their maximum.
fn scores(call: &Call<'_>, seen: &Range<usize>, score: impl Fn(usize) -> f32) -> ([f32; SPLIT], f32) {
    let mut scores = [0.0; SPLIT];
    for j in seen.clone() {
        scores[j] = if let Some(cap) = call.args.rule.softcap { softcap(score(j), cap) } else { score(j) };
    }
    let max = scores[seen.clone()].iter().fold(f32::NEG_INFINITY, |max, &score| if max > score { max } else { score });
    (scores, max)
}

fn bf16_split(call: &Call<'_>, query: &[f32], seen: Range<usize>, place: impl Fn(usize) -> KvPlace) -> Partial {
    let (kv, head_dim, scale) = (call.kv, call.args.layout.head_dim, call.args.rule.scale);
    let mut rounded = [0.0; MAX_HEAD_DIM];
    rounded.iter_mut().zip(query).for_each(|(to, &from)| *to = round_bf16(from));
    let (scores, max) = scores(call, &seen, |j| {
        let place = place(j);
        call.arithmetic.dot(head_dim, |d| rounded[d], |d| kv.key(place, d)) * scale
    });

    let mut weights = [0.0; SPLIT];
    let mut lanes = [0.0; LANES];
    for j in seen.clone() {
        weights[j] = softmax_weight(scores[j] - max);
        lanes[j % LANES] += weights[j];
    }

    let mut values = [0.0; MAX_HEAD_DIM];
    for (d, value) in values[..call.args.layout.value_dim()].iter_mut().enumerate() {
        // A masked value is never read; the product with weight 0 would be 0 for any finite value.
        let seen_value = |j| if seen.contains(&j) { kv.value(place(j), d) } else { 0.0 };
        *value = call.arithmetic.dot(seen.end, |j| weights[j], seen_value);
    }
    Partial { max, sum: sum(lanes), values }
}

fn int8_split(call: &Call<'_>, query: &[f32], seen: Range<usize>, place: impl Fn(usize) -> KvPlace) -> Partial {
    let (kv, head_dim) = (call.kv, call.args.layout.head_dim);
    let (mut spread_query, mut ints) = ([0.0; MAX_HEAD_DIM], [0; MAX_HEAD_DIM]);
    let spread_query = &mut spread_query[..head_dim];
    spread_query.copy_from_slice(query);
    spread(spread_query, kv.shape().run());
    let (query_scale, _) = quantize_row(spread_query, &mut ints[..head_dim]);
    let query_scale = query_scale * call.args.rule.scale;
    let (scores, max) = scores(call, &seen, |j| {
        let place = place(j);
        let sum: i32 = (0..head_dim).map(|d| i32::from(ints[d]) * i32::from(kv.key_int(place, d))).sum();
        (sum as f32 * query_scale) * kv.key_scale(place)
    });

    let mut weights = [0.0; SPLIT];
    let mut lanes = [0.0; LANES];
    for j in seen.clone() {
        let weight = unrounded_weight(scores[j] - max);
        lanes[j % LANES] += weight;
        weights[j] = weight * kv.value_scale(place(j));
    }
    let most = weights.iter().fold(0.0f32, |most, &weight| if most > weight { most } else { weight });
    let factor = if most > 0.0 { MAX_WEIGHT / most } else { 0.0 };

    let mut values = [0.0; MAX_HEAD_DIM];
    for (d, value) in values[..call.args.layout.value_dim()].iter_mut().enumerate() {
        let product = |j: usize| {
            let (high, low) = weight_digits(weights[j] * factor);
            (i32::from(high) * 128 + i32::from(low)) * i32::from(kv.value_int(place(j), d))
        };
        *value = seen.clone().map(product).sum::<i32>() as f32 * (most * (1.0 / MAX_WEIGHT));
    }
    Partial { max, sum: sum(lanes), values }
}

/// Joins the next split.
fn fold(total: &mut Partial, next: &Partial, value_dim: usize) {
    let max = if total.max > next.max { total.max } else { next.max };
    let (keep, join) = (exp(total.max - max), exp(next.max - max));
    total.max = max;
    total.sum = total.sum.mul_add(keep, next.sum * join);
    for (value, &next) in total.values[..value_dim].iter_mut().zip(&next.values) {
        *value = value.mul_add(keep, next * join);
    }
}
