//! How much of a long table of cases a run of tests tries.

/// Whether tables are tried whole: `cargo xtask test --all` sets this.
pub fn is_long() -> bool {
    std::env::var_os("TWOSTROKE_LONG_TESTS").is_some()
}

/// All rows of a short table in a long run, else the one whose turn it is: of a table that is crossed with another.
pub fn one_of<T, const N: usize>(table: [T; N], turn: usize) -> impl Iterator<Item = T> {
    table.into_iter().enumerate().filter(move |(at, _)| is_long() || *at == turn % N).map(|(_, row)| row)
}

/// All rows of a table in a long run, else each `n`th: what a quick run has time for. With `TWOSTROKE_TESTS_EVERY=m` each
/// `m`th of those: an emulated machine has time for less.
pub fn part_of<T>(table: impl IntoIterator<Item = T>, n: usize) -> impl Iterator<Item = T> {
    let every = std::env::var("TWOSTROKE_TESTS_EVERY").ok().and_then(|every| every.parse().ok()).unwrap_or(1);
    table.into_iter().step_by(if is_long() { 1 } else { n * 1.max(every) })
}
