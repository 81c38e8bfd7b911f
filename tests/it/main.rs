//! What needs no built binary, in one: each further one would link the whole tree once more.

mod docs;
mod fuzzed;
mod lantern;
mod minilm;
mod real;
