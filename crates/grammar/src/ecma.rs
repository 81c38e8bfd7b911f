//! Expressions of JSON schemas, which are JavaScript's, in the words of the compiler, which are Rust's.
//!
//! Only what both read, and read differently, or what JavaScript alone reads, is written anew. What no expression of
//! Rust can say (look-around, references to groups) stays as it is, for the compiler to refuse.

/// White space that JavaScript, Python and Rust agree on. `\s` alone is U+0085 too, which JavaScript does not count.
const SPACES: &str = r"\t\n\x0B\x0C\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000";

/// Writes it anew. What was written anew stays as it is in its meaning.
pub(crate) fn in_our_words(expression: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(expression.len()), expression);
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '\\' => escape(rest, false, &mut out),
            '[' => class(rest, &mut out),
            // A brace that begins no count is itself.
            '{' if !is_count(rest) => pushed(r"\{", &rest[1..], &mut out),
            _ => pushed(&rest[..first.len_utf8()], &rest[first.len_utf8()..], &mut out),
        };
    }
    out
}

fn pushed<'a>(text: &str, rest: &'a str, out: &mut String) -> &'a str {
    out.push_str(text);
    rest
}

/// `{3}`, `{3,}`, `{3,5}`; and `{,5}`, which is a count in Python and none in JavaScript, and so is left to be refused.
fn is_count(text: &str) -> bool {
    let Some(inner) = text[1..].split_once('}').map(|(inner, _)| inner) else { return false };
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(least) && is_number(most) && !(least.is_empty() && most.is_empty())
}

/// Translates an escape sequence; returns the rest of the text.
fn escape<'a>(text: &'a str, is_in_class: bool, out: &mut String) -> &'a str {
    let Some(kind) = text[1..].chars().next() else { return pushed("\\", "", out) };
    let rest = &text[1 + kind.len_utf8()..];
    match kind {
        // A character by its number, a class by its name.
        'u' | 'x' | 'p' | 'P' if rest.starts_with('{') => {
            let end = rest.find('}').map_or(rest.len(), |end| end + 1);
            pushed(&text[..text.len() - rest.len() + end], &rest[end..], out)
        }
        's' if is_in_class => pushed(SPACES, rest, out),
        's' => pushed(&format!("[{SPACES}]"), rest, out),
        'S' if is_in_class => pushed(r"\S\x85", rest, out),
        'S' => pushed(r"[\S\x85]", rest, out),
        'b' if is_in_class => pushed(r"\x08", rest, out),
        // Python's end of the text.
        'Z' if !is_in_class => pushed(r"\z", rest, out),
        '0' if !rest.starts_with(|next: char| next.is_ascii_digit()) => pushed(r"\x00", rest, out),
        'c' => match rest.bytes().next().filter(u8::is_ascii_alphabetic) {
            Some(letter) => pushed(&format!("\\x{:02X}", letter % 32), &rest[1..], out),
            None => pushed(r"\c", rest, out),
        },
        'u' => match (unit(rest), rest.get(4..).and_then(|rest| unit(rest.strip_prefix("\\u")?))) {
            // Two halves of a character.
            (Some(high @ 0xD800..0xDC00), Some(low @ 0xDC00..0xE000)) => {
                let whole = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                pushed(&format!("\\u{{{whole:X}}}"), &rest[10..], out)
            }
            _ => pushed(r"\u", rest, out),
        },
        _ => pushed(&text[..1 + kind.len_utf8()], rest, out),
    }
}

fn unit(text: &str) -> Option<u32> {
    let digits = text.get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// A set of characters; gives what is left. Rust has sets within sets, and operators between them.
fn class<'a>(text: &'a str, out: &mut String) -> &'a str {
    let inner = &text[1..];
    let (is_not, mut rest) = inner.strip_prefix('^').map_or((false, inner), |rest| (true, rest));
    if let Some(rest) = rest.strip_prefix(']') {
        // Nothing, and anything.
        return pushed(if is_not { "(?s:.)" } else { r"[^\x00-\u{10FFFF}]" }, rest, out);
    }
    out.push_str(if is_not { "[^" } else { "[" });
    let mut is_first = true;
    while let Some(next) = rest.chars().next() {
        let doubled = rest[next.len_utf8()..].starts_with(next);
        rest = match next {
            ']' => return pushed("]", &rest[1..], out),
            '\\' => escape(rest, true, out),
            '[' => match rest[1..].strip_prefix(':').and_then(|name| name.split_once(":]")) {
                // `[:alpha:]` exists in POSIX alone, and is meant as such.
                Some((name, behind)) if name.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                    pushed(&format!("[:{name}:]"), behind, out)
                }
                _ => pushed(r"\[", &rest[1..], out),
            },
            '&' | '~' if doubled => pushed(&format!("\\{next}"), &rest[1..], out),
            // The first is a character, and the second says from where to where; or the other way round.
            '-' if doubled && is_first => pushed(r"\--", &rest[2..], out),
            '-' if doubled => pushed(r"-\-", &rest[2..], out),
            _ => pushed(&rest[..next.len_utf8()], &rest[next.len_utf8()..], out),
        };
        is_first = false;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_read_the_same_stays_as_it_is() {
        for expression in [
            "",
            "^[a-c]{2,4}$",
            r"^\d{3}-\w+$",
            r"^a\/b\.c$",
            "(?<x>a|b)c",
            "[^\"\\\\]*",
            r"^\u00e9\x41[\-\]]$",
            "a{3,}?",
            r"\u{1F600}",
            "[a-]",
            "[-a]",
            "[a-z-9]",
            "[[:alpha:]_]",
            "é日",
            r"\p{Lu}[\p{L}\d]",
            "a}b]c",
            r"\(\[\{",
            "a{,3}",
            r"\",
            "[a",
            "[+&~]",
        ] {
            assert_eq!(in_our_words(expression), expression);
        }
    }

    #[test]
    fn what_they_read_differently_is_written_anew() {
        for (theirs, ours) in [
            ("^{a}$", r"^\{a}$"),
            ("a{", r"a\{"),
            ("a{,}", r"a\{,}"),
            ("{1}{x}", r"{1}\{x}"),
            ("[[a]b]", r"[\[a]b]"),
            ("[^[]", r"[^\[]"),
            ("[a&&b]", r"[a\&&b]"),
            ("[a~~b]", r"[a\~~b]"),
            ("[+--]", r"[+-\-]"),
            ("[--9]", r"[\--9]"),
            ("[^]{2}", "(?s:.){2}"),
            ("a[]", r"a[^\x00-\u{10FFFF}]"),
            (r"[\b]", r"[\x08]"),
            (r"\cJ[\cj]", r"\x0A[\x0A]"),
            (r"\0", r"\x00"),
            (r"ab\Z", r"ab\z"),
            (r"\ud83d\ude00", r"\u{1F600}"),
            (r"[\uD83D\uDE00-\uD83D\uDE03]", r"[\u{1F600}-\u{1F603}]"),
            (r"\ud83d", r"\ud83d"),
            (r"\\u{[", r"\\u\{["),
        ] {
            let once = in_our_words(theirs);
            assert_eq!(once, ours, "{theirs}");
            assert_eq!(in_our_words(&once), once, "{theirs}, again");
        }
        for (theirs, is_space) in [(r"\s", true), (r"[\s]", true), (r"\S", false), (r"[\S]", false)] {
            let ours = in_our_words(theirs);
            assert_eq!(ours.contains("u00A0"), is_space, "{ours}");
            assert_eq!(ours.contains("x85"), !is_space, "{ours}");
        }
    }
}
