//! How measured numbers are summed up and drawn: one definition of a percentile, and lines as SVG. And the one generator
//! of random numbers.
//!
//! ```text
//! values --> spread.rs   percentile, median, Spread, Distribution     --> tables and JSON of sim, what-if, bench-serve,
//!        \-> plot.rs     Chart: lines, dots and words over two axes       lab, calibration, and the Live page
//!            colour.rs   what is drawn in which colour, everywhere
//! seed   --> random.rs   Random: even bits, and the distributions of loads
//! ```
//!
//! Pure functions of numbers. What the numbers are of, and in which unit, is the caller's to say.

mod colour;
pub mod plot;
pub mod random;
mod spread;

pub use colour::Colour;
pub use spread::{Distribution, Spread, median, percentile, percentile_of};
