//! The manual's pages, made from the flags: `twostroke.1` and one for each verb.

use std::path::Path;

use clap::CommandFactory;

use crate::failure::Failure;
use crate::flags::Cli;

pub(crate) fn write(directory: &Path) -> Result<(), Failure> {
    let failure = |error| Failure::failed(format!("{}: {error}", directory.display()));
    clap_mangen::generate_to(Cli::command(), directory).map_err(failure)
}
