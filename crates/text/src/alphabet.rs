//! GPT-2's byte alphabet: one printable character for each byte, so that a byte-level vocabulary can be written as
//! text.

/// The byte of a character of GPT-2's alphabet: printable Latin-1 maps to itself, the other 68 bytes to U+0100 and
/// up (Radford et al., 2019, `bytes_to_unicode`).
pub(crate) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => Some(code as u8).filter(|&byte| is_itself(byte)),
        code @ 0x100..=0x143 => (0..=255u8).filter(|&byte| !is_itself(byte)).nth(code as usize - 0x100),
        _ => None,
    }
}

fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The characters of the bytes 0 to 255, in order: the inverse of [`byte_of`].
pub(crate) fn byte_alphabet() -> impl Iterator<Item = char> {
    let mut others = '\u{100}'..;
    (0..=255u8).map(move |byte| if is_itself(byte) { char::from(byte) } else { others.next().expect("68 of them") })
}
