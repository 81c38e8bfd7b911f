//! Output that survives what terminals and pipes do, and progress bars that only people see.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;

/// Writes to standard output at once. A reader that went away ends the command without an error message.
pub(crate) fn put(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// As [`put`], with a newline behind.
pub(crate) fn put_line(text: &str) -> Result<(), Failure> {
    put(&format!("{text}\n"))
}

/// A line for the user at the terminal: standard error, whose text is no interface.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}"); // a closed standard error is no failure
}

/// Columns of the terminal that standard output is now; 0 if it has none.
pub(crate) fn columns() -> usize {
    console::Term::stdout().size_checked().map_or(0, |(_, columns)| columns.into())
}

/// A progress bar on standard error; nothing at all where that is not a terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Over bytes.
    pub(crate) fn new(what: &str) -> Progress {
        Progress::drawn(what, "{msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec}")
    }

    /// Over things that are counted one by one.
    pub(crate) fn counting(what: &str, things: &str) -> Progress {
        Progress::drawn(what, &format!("{{msg}} {{bar:30}} {{pos}}/{{len}} {things} {{eta}} left"))
    }

    /// Over the tokens of a prompt: `reading 1,240 of 4,096 tokens`.
    pub(crate) fn reading() -> Progress {
        Progress::drawn("reading", "{msg} {human_pos} of {human_len} tokens {bar:30}")
    }

    fn drawn(what: &str, template: &str) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(template).expect("templates are constants");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
        bar.set_message(what.to_string());
        Progress(bar)
    }

    pub(crate) fn at(&self, done: u64, total: u64) {
        if self.0.length() != Some(total) {
            self.0.set_length(total);
        }
        self.0.set_position(done);
    }

    pub(crate) fn naming(&self, what: String) {
        self.0.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
