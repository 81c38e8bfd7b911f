//! How measured numbers are summed up and drawn: one definition of a percentile, and lines as SVG.
//!
//! ```text
//! values --> spread.rs   percentile, median, Spread, Distribution     --> tables and JSON of sim, what-if, bench-serve,
//!        \-> plot.rs     Chart: lines, dots and words over two axes       lab, calibration, and the Live page
//! ```
//!
//! Pure functions of numbers. What the numbers are of, and in which unit, is the caller's to say.

pub mod plot;
mod spread;

pub use spread::{Distribution, Spread, median, percentile, percentile_of};
