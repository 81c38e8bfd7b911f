//! Why a text could not be encoded.

/// Why a text could not be encoded. The text itself never enters the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The tokenizer's rules failed on this text, for example for want of an unknown token.
    #[error("the tokenizer could not encode this text")]
    Encode,
    /// The tokenizer has rules that take much memory and time, and texts for it have a limit.
    #[error("the text has {bytes} bytes; this model's tokenizer takes at most {limit} at once")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Bytes that are taken.
        limit: usize,
    },
    /// Whoever wanted the result does not want it any more; see [`crate::pace`].
    #[error("encoding was stopped")]
    Dropped,
}
