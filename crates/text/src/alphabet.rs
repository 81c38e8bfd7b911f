//! GPT-2's alphabet: a character for each byte, so that a vocabulary of bytes can be written as text.

/// The byte that a character of GPT-2's alphabet stands for: printable Latin-1 is itself, the other 68 bytes follow
/// from U+0100 (Radford et al., 2019, `bytes_to_unicode`).
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

/// The characters that stand for the bytes 0 to 255, in order: [`byte_of`] the other way.
pub(crate) fn byte_alphabet() -> impl Iterator<Item = char> {
    let mut others = '\u{100}'..;
    (0..=255u8).map(move |byte| if is_itself(byte) { char::from(byte) } else { others.next().expect("68 of them") })
}
