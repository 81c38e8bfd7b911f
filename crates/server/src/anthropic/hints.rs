//! Anthropic's fields that change no token, by their own definition.

use crate::openai::hints::{Hint, Kind, hint};

/// All of them: the list is closed ([`crate::openai::hints`]).
pub(crate) static HINTS: &[Hint] = &[
    hint("metadata", Kind::Object, "who is behind a request, for its vendor's records"),
    hint("cache_control", Kind::Object, "that the prompt is to be cached; here every block may be"),
    hint("system[].cache_control", Kind::Object, "where a cached part of the prompt ends; the same"),
    hint("messages[].content[].cache_control", Kind::Object, "the same of a block"),
    hint("messages[].content[].content[].cache_control", Kind::Object, "the same of a block of what a tool said"),
    hint("tools[].cache_control", Kind::Object, "the same of a tool"),
    hint(
        "tools[].eager_input_streaming",
        Kind::Boolean,
        "whether the input of a call comes as it is written; here it does",
    ),
];
