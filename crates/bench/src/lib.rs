//! Measuring: servers from the outside ([`load`]).

pub mod load;
