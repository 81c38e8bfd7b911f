//! The largest logits of a row, as a sampler orders them.

use std::cmp::Ordering;

/// A logit and its id.
pub type Candidate = (f32, u32);

/// Best first: falling logits, of equal ones (-0 equals +0) the lower id. No value is NaN.
#[inline] // sorts of other crates call it for each comparison: a sixth of a draw's instructions
pub fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.0.partial_cmp(&a.0).expect("no NaN").then(a.1.cmp(&b.1))
}

/// The `num` largest logits of a row into `found`, best first; of a row that holds NaN or +infinity, `(NaN, u32::MAX)`
/// alone. Costs two reads of the row, and for more than one a partial selection.
pub fn find_best(row: &[f32], num: usize, found: &mut Vec<Candidate>) {
    if !all_below_infinity(row) {
        found.clear();
        found.push((f32::NAN, u32::MAX));
    } else if num == 1 {
        let max = max_of(row);
        found.clear();
        found.extend(row.iter().position(|&x| x == max).map(|id| (row[id], id as u32)));
    } else {
        select_best(row, num, found);
    }
}

/// The same of a row that holds neither.
///
/// One pass with a rising threshold: blocks of 16 with nothing above it are skipped.
pub fn select_best(row: &[f32], num: usize, found: &mut Vec<Candidate>) {
    let num = num.min(row.len());
    found.clear();
    if num == 0 {
        return;
    }
    if num == row.len() {
        found.extend(row.iter().enumerate().map(|(id, &x)| (x, id as u32)));
        found.sort_unstable_by(by_logit);
        return;
    }
    let room = num + num.max(64);
    let mut threshold = None;
    for (block, logits) in row.chunks(16).enumerate() {
        if let Some(threshold) = threshold
            && logits.iter().map(|&x| u32::from(x > threshold)).sum::<u32>() == 0
        {
            continue;
        }
        for (i, &x) in logits.iter().enumerate() {
            if threshold.is_none_or(|threshold| x > threshold) {
                found.push((x, (block * 16 + i) as u32));
            }
        }
        if found.len() >= room {
            found.select_nth_unstable_by(num - 1, by_logit);
            found.truncate(num);
            threshold = Some(found[num - 1].0);
        }
    }
    if found.len() > num {
        found.select_nth_unstable_by(num - 1, by_logit);
        found.truncate(num);
    }
    found.sort_unstable_by(by_logit);
}

/// The largest value, -infinity when there is none. No value is NaN.
pub fn max_of(row: &[f32]) -> f32 {
    // Sixteen running maxima: one alone would wait for itself at every element.
    let larger = |m: f32, x: f32| if x > m { x } else { m };
    let (blocks, tail) = row.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, x);
        }
    }
    lanes.into_iter().chain(tail.iter().copied()).fold(f32::NEG_INFINITY, larger)
}

/// False when a value is NaN or +infinity.
pub fn all_below_infinity(row: &[f32]) -> bool {
    // `x < inf` is false for both; counting keeps the loop free of branches.
    row.iter().map(|&x| u32::from(x < f32::INFINITY)).sum::<u32>() as usize == row.len()
}
