//! What workers say to each other, as one that lies would say it. A panic is a finding.

/// A frame of a handoff: a digit that says of which kind, and its body. One that is taken is written again as it was.
pub fn frame(bytes: &[u8]) -> bool {
    bytes.split_first().is_some_and(|(kind, body)| engine::check_frame(kind.wrapping_sub(b'0'), body))
}
