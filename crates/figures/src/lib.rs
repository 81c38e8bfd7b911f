//! Statistics and charts of measured numbers: one definition of a percentile, and line charts as SVG. And the random
//! generator.
//!
//! ```text
//! values --> spread.rs   percentile, median, Spread, Distribution     --> tables and JSON of sim, what-if, bench-serve,
//!        \-> plot.rs     Chart: lines, dots and labels over two axes      lab, calibration, and the Live page
//!            colour.rs   the colour of each meaning, in every chart
//! seed   --> random.rs   Random: even bits, and the distributions of loads
//! ```
//!
//! Pure functions of numbers; the caller names quantities and units.

mod colour;
pub mod plot;
pub mod random;
mod spread;

pub use colour::Colour;
pub use spread::{Distribution, Spread, median, percentile, percentile_of};
