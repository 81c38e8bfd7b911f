//! Ollama's fields that change no token here: how long a model stays, and what machine it runs on.

use transport::hints::{Hint, Kind, hint};

/// All of them: the list is closed ([`transport::hints`]).
pub(crate) static HINTS: &[Hint] = &[
    hint("keep_alive", Kind::Time, "how long a model stays loaded, if it is not the first of the server"),
    hint("options.num_keep", Kind::Number, "what stays of a prompt that is cut; here none is"),
    hint("options.num_batch", Kind::Number, "tokens in one step; here the server's flags say so"),
    hint("options.num_gpu", Kind::Number, "layers on a GPU; here the server's flags say what computes"),
    hint("options.main_gpu", Kind::Number, "which GPU; the same"),
    hint("options.low_vram", Kind::Boolean, "spares a GPU's memory; the same"),
    hint("options.num_thread", Kind::Number, "threads that compute; here the server's flags say so"),
    hint("options.use_mmap", Kind::Boolean, "how weights are read"),
    hint("options.use_mlock", Kind::Boolean, "whether weights may be swapped out"),
    hint("options.numa", Kind::Boolean, "where threads and memory are"),
];
