//! The program: its arguments in, its exit code out. Everything else is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(std::env::args_os()).into()
}
