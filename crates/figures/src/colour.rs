//! The colour of each meaning, the same in every chart: prefill orange, decode blue.
//!
//! ```text
//! meaning      SVG        the page's light theme (web/src/style.css)   terminal
//! prefill      #d9730d    --prefill                                    208-colour orange, solid blocks
//! decode       #1f6fd0    --decode                                     blue, lines
//! late         #d1242f    --late
//! cached       #1a9a5c    --cached
//! ```
//! The Grafana board uses the same two colours. A test compares all of them. Colour is never the only distinction: in
//! SVG the dots of prefill are squares and those of decode discs, and lines of no phase are dashed.

/// The meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Colour {
    /// Prefill, and waiting for it.
    Prefill,
    /// Decode.
    Decode,
    /// Too late, or waiting.
    Late,
    /// Blocks of the KV cache.
    Cached,
    /// Both phases together, or neither.
    Ink,
    /// A limit or a target.
    Limit,
}

impl Colour {
    /// `#rrggbb`, for a white background.
    pub const fn hex(self) -> &'static str {
        match self {
            Colour::Prefill => "#d9730d",
            Colour::Decode => "#1f6fd0",
            Colour::Late => "#d1242f",
            Colour::Cached => "#1a9a5c",
            Colour::Ink => "#1b1f24",
            Colour::Limit => "#5d6671",
        }
    }

    /// Escape sequence for a terminal with 256 colours: an orange and a blue that are visible on black and on white;
    /// empty for the terminal's default.
    pub const fn ansi(self) -> &'static str {
        match self {
            Colour::Prefill => "\x1b[38;5;166m",
            Colour::Decode => "\x1b[38;5;32m",
            Colour::Late => "\x1b[31m",
            Colour::Cached => "\x1b[32m",
            Colour::Ink => "",
            Colour::Limit => "\x1b[2m",
        }
    }
}
