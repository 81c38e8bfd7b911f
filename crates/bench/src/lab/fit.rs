//! Laws: which sum of powers describes what was measured, and how well.

/// `y = sum of coefficients[i] * x^i`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    /// By rising power; what would come out below zero is left out as 0: no prompt gets cheaper as it grows.
    pub(crate) coefficients: Vec<f64>,
    /// Share of the variance that it explains.
    pub(crate) r2: f64,
    /// Median relative distance of the points.
    pub(crate) residual: f64,
}

impl Fit {
    /// The law with powers up to `degree` that is relatively nearest to the points (least squares of relative errors).
    /// `None` for fewer points than that has coefficients, or points at or below zero.
    pub(crate) fn of(points: &[(f64, f64)], degree: usize) -> Option<Fit> {
        if points.len() <= degree || points.iter().any(|&(_, y)| y <= 0.0) {
            return None;
        }
        let mut powers: Vec<usize> = (0..=degree).collect();
        let coefficients = loop {
            let solved = solve(points, &powers)?;
            let worst = (0..powers.len()).min_by(|&a, &b| solved[a].total_cmp(&solved[b]))?;
            if solved[worst] >= 0.0 {
                let mut all = vec![0.0; degree + 1];
                powers.iter().zip(&solved).for_each(|(&power, &value)| all[power] = value);
                break all;
            }
            powers.remove(worst);
        };
        let mut fit = Fit { coefficients, r2: 0.0, residual: 0.0 };
        let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
        let (mut left, mut all) = (0.0, 0.0);
        let mut off: Vec<f64> = Vec::new();
        for &(x, y) in points {
            left += (y - fit.at(x)).powi(2);
            all += (y - mean).powi(2);
            off.push((fit.at(x) / y - 1.0).abs());
        }
        fit.r2 = if all > 0.0 { 1.0 - left / all } else { 1.0 };
        fit.residual = figures::median(&mut off).unwrap_or_default();
        Some(fit)
    }

    pub(crate) fn at(&self, x: f64) -> f64 {
        self.coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
    }
}

/// The normal equations of relative errors, by elimination. `None` if the points do not tell the powers apart.
fn solve(points: &[(f64, f64)], powers: &[usize]) -> Option<Vec<f64>> {
    let n = powers.len();
    // Powers of large numbers are scaled to the largest, or digits are lost.
    let scale = points.iter().map(|point| point.0).fold(1.0, f64::max);
    let mut rows = vec![vec![0.0; n + 1]; n];
    for &(x, y) in points {
        let features: Vec<f64> = powers.iter().map(|&power| (x / scale).powi(power as i32) / y).collect();
        for (row, a) in rows.iter_mut().zip(&features) {
            for (cell, b) in row.iter_mut().zip(features.iter().chain([&1.0])) {
                *cell += a * b;
            }
        }
    }
    for column in 0..n {
        let pivot = (column..n).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        let top = rows[column].clone();
        if top[column].abs() < 1e-300 {
            return None;
        }
        for row in rows.iter_mut().skip(column + 1) {
            let factor = row[column] / top[column];
            row.iter_mut().zip(&top).for_each(|(cell, above)| *cell -= factor * above);
        }
    }
    let mut solution = vec![0.0; n];
    for index in (0..n).rev() {
        let known: f64 = (index + 1..n).map(|other| rows[index][other] * solution[other]).sum();
        solution[index] = (rows[index][n] - known) / rows[index][index];
    }
    let scaled = solution.iter().zip(powers).map(|(value, &power)| value / scale.powi(power as i32));
    Some(scaled.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_is_found_again() {
        let law = |x: f64| 0.004 + 1e-3 * x + 2e-8 * x * x;
        let points: Vec<(f64, f64)> = [32.0, 64.0, 256.0, 1024.0, 4096.0].map(|x| (x, law(x))).to_vec();
        let fit = Fit::of(&points, 2).expect("five points");
        for (got, wanted) in fit.coefficients.iter().zip([0.004, 1e-3, 2e-8]) {
            assert!((got / wanted - 1.0).abs() < 1e-6, "{fit:?}");
        }
        assert!(fit.r2 > 0.999_999 && fit.residual < 1e-6, "{fit:?}");
    }

    #[test]
    fn nothing_gets_cheaper_as_it_grows() {
        let points = [(1.0, 1.0), (2.0, 2.1), (3.0, 2.9), (4.0, 3.9)];
        let fit = Fit::of(&points, 2).expect("four points");
        assert!(fit.coefficients.iter().all(|&coefficient| coefficient >= 0.0), "{fit:?}");
        assert!(fit.residual < 0.05, "{fit:?}");
    }

    #[test]
    fn too_little_is_no_law() {
        assert_eq!(Fit::of(&[(1.0, 1.0), (2.0, 2.0)], 2), None);
        assert_eq!(Fit::of(&[(1.0, 1.0), (2.0, 0.0)], 1), None);
        assert_eq!(Fit::of(&[(1.0, 1.0), (1.0, 2.0)], 1), None);
    }
}
