//! Errors in the words of Python: `max_num_seqs` where a command line has `--max-num-seqs`.

use cli::Failure;
use engine::Rejection;
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

/// What is wrong with an option is a `ValueError`, anything else a `RuntimeError`.
pub(crate) fn failure(failure: Failure) -> PyErr {
    match failure {
        Failure::Usage(message) => PyValueError::new_err(in_python(&message)),
        Failure::Failed(message) => PyRuntimeError::new_err(in_python(&message)),
        other => PyRuntimeError::new_err(format!("{other:?}")),
    }
}

/// The message names the field, by the name that it has here.
pub(crate) fn rejection(rejection: &Rejection, adapter: Option<&str>) -> PyErr {
    let message = &rejection.message;
    PyValueError::new_err(match (rejection.param, adapter) {
        (Some("model"), Some(adapter)) => format!("adapter {adapter:?}: {message}"),
        (Some("rule"), _) => format!("structured_outputs: {message}"),
        (Some(param), _) if !message.contains(param) => format!("{param}: {message}"),
        _ => message.clone(),
    })
}

/// Names of flags as names of options; without what is said of `--help`, and without signs for values.
pub(crate) fn in_python(message: &str) -> String {
    let message = message.trim_end_matches("; --help lists what there is");
    let mut parts = message.split("--");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        text += &name.replace('-', "_");
        // What stands for the value: `--max-num-seqs <N>`.
        let sign = rest.strip_prefix(" <").and_then(|rest| rest.split_once('>'));
        text += sign.map_or(rest, |(_, rest)| rest);
    }
    // The model is an argument without a flag, or behind a short one.
    if let Some(rest) = text.strip_prefix("-m: ") { format!("model: {rest}") } else { text }
}
