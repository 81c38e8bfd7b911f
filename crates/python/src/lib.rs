//! The Python package `twostroke`: the part of it that is Rust, `twostroke._twostroke`. What users see is in `twostroke/`.
//!
//! ```text
//! twostroke/llm.py: LLM --> Engine --validate--> Request     no Python meanwhile
//!                             |
//!                             +--> Inbox --submit, take, output--> outputs of many requests, as they come
//!                                    |
//!                                    +-- a socket that becomes readable: what select() and asyncio wait for
//! twostroke/__main__.py --> main --> cli::main               the command itself
//! ```
//! No thread waits here for a token, and no thread of the engine ever waits for the interpreter: what wakes a reader is
//! a byte in a socket.

mod answers;
mod engine;
mod inbox;
mod log;
mod request;
mod words;

use pyo3::prelude::*;

/// See the head of the crate.
#[pymodule]
mod _twostroke {
    use std::ffi::OsString;
    use std::panic::catch_unwind;

    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::inbox::Inbox;
    #[pymodule_export]
    use crate::request::Request;

    /// Of the package and of the command.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Exit code of a bug, as of any program in Rust.
    const BUG: u8 = 101;

    /// Runs the command `twostroke` with these arguments and returns its exit code.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        let arguments = [OsString::from("twostroke")].into_iter().chain(arguments);
        py.detach(|| catch_unwind(|| cli::main(arguments)).unwrap_or(BUG))
    }

    /// Says what starts this command again, arguments behind it: chat templates run in processes of their own.
    #[pyfunction]
    fn started_by(command: Vec<OsString>) {
        cli::started_by(command);
    }

    /// What a command says, in the words of Python: `n_prompt` for `--n-prompt`.
    #[pyfunction]
    fn in_python(message: &str) -> String {
        crate::words::in_python(message)
    }

    /// Names of the options that [`Engine`] takes.
    #[pyfunction]
    fn engine_options() -> Vec<&'static str> {
        cli::ENGINE_OPTIONS.to_vec()
    }
}
