//! Attention in plain loops: the reference for every other path, and the path of CPUs without vectors.

use super::tile::Tile;
use super::{Call, SPLIT};
use crate::kv_cache::{KvCache, KvDtype, KvPlace, MAX_HEAD_DIM};
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

/// The head of the cache that a tile's rows read, at the positions that they see, taken out of its layout once.
struct Head<T> {
    first: usize,
    places: Vec<KvPlace>,
    keys: Vec<Vec<T>>,
    values: Vec<Vec<T>>,
}

/// All rows of a tile.
pub(super) fn tile(call: &Call<'_>, tile: &Tile) {
    match call.kv.shape().dtype {
        KvDtype::Bf16 => rows(call, tile, [KvCache::key, KvCache::value], bf16_split),
        KvDtype::Int8 => rows(call, tile, [KvCache::key_int, KvCache::value_int], int8_split),
    }
}

/// A split of a row: the head, the query, where the split begins, and what the row sees of it.
type Split<T> = fn(&Call<'_>, &Head<T>, &[f32], usize, Range<usize>) -> Partial;

fn rows<T>(call: &Call<'_>, tile: &Tile, read: [fn(&KvCache, KvPlace, usize) -> T; 2], split: Split<T>) {
    let (layout, span, block_size) = (call.args.layout, tile.span(call), call.kv.shape().block_size);
    let seen = |row: usize| call.seen(span, row / call.group());
    let first = tile.rows.clone().map(|row| seen(row).start).min().unwrap_or(0);
    let end = tile.rows.clone().map(|row| seen(row).end).max().unwrap_or(0);
    let place = |position: usize| {
        let slot = span.blocks[position / block_size] as usize * block_size + position % block_size;
        KvPlace { layer: call.args.layer, slot, kv_head: tile.kv_head }
    };
    let places: Vec<KvPlace> = (first..end).map(place).collect();
    let [keys, values] = [(read[0], layout.head_dim), (read[1], layout.value_dim())].map(|(read, width)| {
        places.iter().map(|&place| (0..width).map(|d| read(call.kv, place, d)).collect()).collect()
    });
    let cached = Head { first, places, keys, values };
    for row in tile.rows.clone() {
        let (token, head) = (row / call.group(), tile.kv_head * call.group() + row % call.group());
        let batch_row = span.first_row + token;
        let query = &call.args.qkv[batch_row * layout.qkv_width() + head * layout.head_dim..][..layout.head_dim];
        // SAFETY: each row and head is in one tile.
        let out = unsafe { call.out(batch_row, head) };
        let seen = seen(row);
        let split = |start: usize| {
            split(call, &cached, query, start, seen.start.saturating_sub(start)..(seen.end - start).min(SPLIT))
        };
        let first_split = seen.start / SPLIT * SPLIT;
        let mut total = split(first_split);
        for start in (first_split + SPLIT..seen.end).step_by(SPLIT) {
            fold(&mut total, &split(start), out.len());
        }
        if let Some(sinks) = call.args.sinks {
            fold(&mut total, &Partial { max: sinks[head], sum: 1.0, values: [0.0; MAX_HEAD_DIM] }, out.len());
        }
        out.iter_mut().zip(total.values).for_each(|(out, value)| *out = value / total.sum);
        if call.kv.shape().dtype == KvDtype::Int8 {
            gather(out, call.kv.shape().run());
        }
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

fn bf16_split(call: &Call<'_>, head: &Head<f32>, query: &[f32], start: usize, seen: Range<usize>) -> Partial {
    let (head_dim, scale) = (call.args.layout.head_dim, call.args.rule.scale);
    let mut rounded = [0.0; MAX_HEAD_DIM];
    rounded.iter_mut().zip(query).for_each(|(to, &from)| *to = round_bf16(from));
    let (scores, max) = scores(call, &seen, |j| {
        let key = &head.keys[start + j - head.first];
        call.arithmetic.dot(head_dim, |d| rounded[d], |d| key[d]) * scale
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
        let seen_value = |j| if seen.contains(&j) { head.values[start + j - head.first][d] } else { 0.0 };
        *value = call.arithmetic.dot(seen.end, |j| weights[j], seen_value);
    }
    Partial { max, sum: sum(lanes), values }
}

fn int8_split(call: &Call<'_>, head: &Head<i8>, query: &[f32], start: usize, seen: Range<usize>) -> Partial {
    let (kv, head_dim) = (call.kv, call.args.layout.head_dim);
    let (mut spread_query, mut ints) = ([0.0; MAX_HEAD_DIM], [0; MAX_HEAD_DIM]);
    let spread_query = &mut spread_query[..head_dim];
    spread_query.copy_from_slice(query);
    spread(spread_query, kv.shape().run());
    let (query_scale, _) = quantize_row(spread_query, &mut ints[..head_dim]);
    let query_scale = query_scale * call.args.rule.scale;
    let (scores, max) = scores(call, &seen, |j| {
        let at = start + j - head.first;
        let sum: i32 = head.keys[at].iter().zip(ints).map(|(&key, q)| i32::from(q) * i32::from(key)).sum();
        (sum as f32 * query_scale) * kv.key_scale(head.places[at])
    });

    let mut weights = [0.0; SPLIT];
    let mut lanes = [0.0; LANES];
    for j in seen.clone() {
        let weight = unrounded_weight(scores[j] - max);
        lanes[j % LANES] += weight;
        weights[j] = weight * kv.value_scale(head.places[start + j - head.first]);
    }
    let most = weights.iter().fold(0.0f32, |most, &weight| if most > weight { most } else { weight });
    let factor = if most > 0.0 { MAX_WEIGHT / most } else { 0.0 };

    let mut values = [0.0; MAX_HEAD_DIM];
    for (d, value) in values[..call.args.layout.value_dim()].iter_mut().enumerate() {
        let product = |j: usize| {
            let (high, low) = weight_digits(weights[j] * factor);
            (i32::from(high) * 128 + i32::from(low)) * i32::from(head.values[start + j - head.first][d])
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
