//! An order of scores that is the same on every machine.

use std::cmp::Ordering;

/// The larger first, and any NaN before all numbers: its sign differs between machines.
pub(crate) fn falling(a: f64, b: f64) -> Ordering {
    let number = |x: f64| if x.is_nan() { f64::NAN } else { x };
    number(b).total_cmp(&number(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_of_a_nan_orders_nothing() {
        let sorted = |mut sums: Vec<f64>| {
            sums.sort_by(|a, b| falling(*a, *b));
            sums.iter().map(|sum| format!("{sum:?}")).collect::<Vec<_>>().concat()
        };
        for nan in [f64::NAN, -f64::NAN] {
            assert_eq!(sorted(vec![1.0, nan, f64::INFINITY, -2.0]), "NaNinf1.0-2.0");
        }
    }
}
