//! The query of a URL: `?name=value&name=value`, and one error for each way in which a parameter can be wrong.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::wrong_type;
use crate::shape::Kind;

/// Names and values, as they were meant.
pub fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| (decoded(name), decoded(value)))
}

pub fn number(name: &str, value: &str) -> Result<u64, ApiError> {
    let wrong = || ApiError::bad_request(format!("{name} must be a whole number, 0 or more.")).with_param(name);
    value.parse().map_err(|_| wrong())
}

/// `true` or `false`.
pub fn boolean(name: &str, value: &str) -> Result<bool, ApiError> {
    value.parse().map_err(|_| wrong_type(name, "true or false"))
}

/// A name in a URL's query.
#[derive(Clone, Copy)]
pub struct QueryParameter {
    pub name: &'static str,
    pub kind: Kind,
    pub about: &'static str,
}

pub const fn parameter(name: &'static str, kind: Kind, about: &'static str) -> QueryParameter {
    QueryParameter { name, kind, about }
}

/// Refuses a query with a name that is none of these, or that stands there twice and is no list: one of the two would be
/// dropped in silence.
pub fn check(query: &str, known: &[QueryParameter]) -> Result<(), ApiError> {
    let mut seen = Vec::new();
    for (name, _) in pairs(query) {
        let parameter = known.iter().find(|parameter| parameter.name == name).ok_or_else(|| unknown(&name))?;
        if seen.contains(&parameter.name) && !matches!(parameter.kind, Kind::List(_)) {
            let message = format!("The query names '{name}' twice: send it once.");
            return Err(ApiError::bad_request(message).with_param(name));
        }
        seen.push(parameter.name);
    }
    Ok(())
}

/// Whether what a part of a URL stands for is text.
pub fn is_text(part: &str) -> bool {
    std::str::from_utf8(&bytes(part)).is_ok()
}

/// A parameter that the route does not have. What cannot be the name of one is not repeated.
pub fn unknown(name: &str) -> ApiError {
    let error = ApiError::bad_request("This URL does not know one of the parameters of its query.");
    let is_a_name = name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    if is_a_name { error.with_param(name) } else { error }
}

/// What a page of a list has, and may have at most: OpenAI's numbers.
pub const PAGE: Limits = (20, 100);
pub const FILES_PAGE: Limits = (10_000, 10_000);

/// If nothing is asked, and at most.
type Limits = (usize, u64);

/// Which part of a list.
pub struct Page {
    limit: usize,
    after: Option<String>,
    others: Vec<(String, String)>,
}

impl Page {
    /// `others`: what else the route knows.
    pub fn read(query: &str, (usual, most): Limits, others: &[&str]) -> Result<Page, ApiError> {
        let mut page = Page { limit: usual, after: None, others: Vec::new() };
        for (name, value) in pairs(query) {
            match name.as_ref() {
                "limit" => match number("limit", &value)? {
                    limit if (1..=most).contains(&limit) => page.limit = limit as usize,
                    _ => return Err(wrong_type("limit", &format!("a number from 1 to {most}"))),
                },
                "after" => page.after = Some(value.into_owned()),
                other if others.contains(&other) => page.others.push((name.into_owned(), value.into_owned())),
                other => return Err(unknown(other)),
            }
        }
        Ok(page)
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.others.iter().position(|(other, _)| other == name)?;
        Some(self.others.remove(at).1)
    }

    /// Whether the oldest come first (`order`).
    pub fn is_rising(&mut self) -> Result<bool, ApiError> {
        match self.take("order").as_deref() {
            None | Some("desc") => Ok(false),
            Some("asc") => Ok(true),
            Some(_) => Err(wrong_type("order", "'asc' or 'desc'")),
        }
    }

    /// That part of `all`, as a list. Behind what is not there is nothing that could be told from its end.
    pub fn of(&self, all: Vec<Value>) -> Result<Value, ApiError> {
        let behind = |after: &String| {
            let at = all.iter().position(|item| item["id"] == **after);
            at.map(|at| at + 1).ok_or_else(|| wrong_type("after", "the name of something in this list"))
        };
        let from = self.after.as_ref().map_or(Ok(0), behind)?;
        let data: Vec<Value> = all[from..].iter().take(self.limit).cloned().collect();
        let has_more = all.len() > from + data.len();
        let ends = [data.first(), data.last()].map(|item| item.map(|item| item["id"].clone()));
        Ok(json!({"object": "list", "data": data, "first_id": ends[0], "last_id": ends[1], "has_more": has_more}))
    }
}

/// A part of a query as it was meant: `+` is a space, `%2F` a slash. What is no text becomes replacement characters,
/// which no name and no number has.
fn decoded(text: &str) -> Cow<'_, str> {
    match bytes(text) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

fn bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        match (first, more.get(..2).and_then(byte)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = more;
            }
            _ => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    Cow::Owned(bytes)
}

/// Of two hexadecimal digits; a sign is none.
fn byte(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_once_where_it_is_no_list() {
        let known = [parameter("a", Kind::Text, ""), parameter("b[]", Kind::List(&Kind::Text), "")];
        for (query, at_fault) in [
            ("", None),
            ("a=1&b[]=1&b%5B%5D=2", None),
            ("a=1&a=1", Some("a")),
            ("a=1&b[]=2&%61=3", Some("a")),
            ("a&a", Some("a")),
            ("c=1", Some("c")),
        ] {
            let refused = check(query, &known).err();
            assert_eq!(refused.as_ref().and_then(ApiError::param), at_fault, "{query}");
        }
        for (path, expected) in [("/v1/a", true), ("/%C3%BC+", true), ("/%ff", false), ("/%C3", false), ("/%zz", true)]
        {
            assert_eq!(is_text(path), expected, "{path}");
        }
    }

    #[test]
    fn a_page_is_as_long_as_its_route_allows() {
        for (query, limits, limit) in [
            ("", PAGE, Some(20)),
            ("limit=7", PAGE, Some(7)),
            ("limit=100", PAGE, Some(100)),
            ("limit=101", PAGE, None),
            ("limit=0", PAGE, None),
            ("", FILES_PAGE, Some(10_000)),
            ("limit=10000", FILES_PAGE, Some(10_000)),
            ("limit=10001", FILES_PAGE, None),
        ] {
            assert_eq!(Page::read(query, limits, &[]).ok().map(|page| page.limit), limit, "{query} of {limits:?}");
        }
    }

    #[test]
    fn queries_are_decoded_once() {
        let table = [
            ("plain", "plain"),
            ("2%2Fmin", "2/min"),
            ("a+b%20c", "a b c"),
            ("%252F", "%2F"),
            ("100%", "100%"),
            ("%zz", "%zz"),
            ("%+5%-5", "% 5%-5"),
            ("%ff", "\u{fffd}"),
            ("%C3%BC", "ü"),
        ];
        for (text, wanted) in table {
            assert_eq!(decoded(text), wanted, "{text}");
        }
    }
}
