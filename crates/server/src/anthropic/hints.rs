//! Anthropic's fields that change no token, by their own definition.

use transport::hints::{Hint, Kind, hint};

/// All of them: the list is closed ([`transport::hints`]).
pub(crate) static HINTS: &[Hint] = &[
    hint("metadata", Kind::Object, "who is behind a request, for its vendor's records"),
    hint("cache_control", Kind::Object, "that the prompt is to be cached; here every block may be"),
    hint("inference_geo", Kind::Text, "where in the world the answer is computed"),
    hint("speed", Kind::Text, "how fast and dear the answer is to be"),
];
