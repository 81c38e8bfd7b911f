//! Errors of encoding.

/// Why a text could not be encoded. The text itself never enters the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The tokenizer's rules failed on this text, for example because it has no unknown token.
    #[error("the tokenizer could not encode this text")]
    Encode,
    /// The tokenizer has rules that take much memory and time, so the length of its texts is limited.
    #[error("the text has {bytes} bytes; this model's tokenizer takes at most {limit} at once")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Maximum bytes.
        limit: usize,
    },
    /// The caller no longer needs the result; see [`crate::yield_point`].
    #[error("encoding was stopped")]
    Dropped,
}
