//! Whose pages may ask. A browser sends requests for any page that it shows, also to addresses that only its own
//! machine or network can reach, and such a page must neither read an answer nor make the engine work.
//!
//! ```text
//! page of another site --POST--> Origin, Sec-Fetch-Site say so ------------------> 403
//! page of evil.test, whose name now resolves to this machine (DNS rebinding):
//!   the same origin for the browser, --> Host: evil.test is no name of ours -----> 403
//! curl, an SDK, a scrape: no Origin; Host is an address or a name of ours -------> served
//! ```
//!
//! A client that connects by address puts the address into `Host`, so an address is never a rebound name, and needs
//! no list. Of names there are `localhost` and what ends in it, which cannot be registered, the name that `--host`
//! gives, and those of `--allowed-host`.
//!
//! Where the server has keys, the key tells clients from untrusted pages: no page has it, and no browser sends it
//! by itself. Then neither check is made; the one of names is if names are configured. A server behind a proxy or in a
//! cluster, where it goes by names that only the proxy knows, has keys.
//!
//! The check of origins is that of Go's `http.CrossOriginProtection`, which says why no token is needed for it.
//! Requests that only read pass, because another origin's page cannot read their answers, but not under `/live/`: a
//! feed takes a seat and a simulation a core while no one reads them.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::StatusCode;

use crate::error::ApiError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Headers of answers that scripts of another origin may read beside the common ones.
const EXPOSED: &str = "request-id, retry-after, server-timing, x-predicted-ttft-ms, x-promise, x-promised-total-ms, \
    x-promised-ttft-ms, x-request-id, x-twostroke-hints, x-twostroke-max-tokens";
/// Seconds for which a browser need not ask again whether it may ask.
const PREFLIGHT_AGE: &str = "600";

/// The names of this server and the origins whose pages may ask it.
pub struct OriginPolicy {
    names: Vec<String>,
    origins: Vec<HeaderValue>,
    checks_names: bool,
    checks_origins: bool,
}

/// What a server is told about itself at its start.
pub struct OriginOptions<'a> {
    /// What it listens on: a name or an address.
    pub host: &'a str,
    pub allowed_hosts: &'a [String],
    pub allowed_origins: &'a [String],
    /// Whether requests bring keys.
    pub has_keys: bool,
}

/// A name or an origin that no request could have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    Host(String),
    Origin(String),
}

impl OriginPolicy {
    pub fn new(told: &OriginOptions<'_>) -> Result<OriginPolicy, Unusable> {
        let own = Some(told.host).filter(|host| matches!(parse_host(host), Some(Host::Name(_))));
        let mut names = Vec::new();
        for given in told.allowed_hosts.iter().map(String::as_str).chain(own) {
            match parse_host(given) {
                // A port would never be compared, so it is refused.
                Some(Host::Name(name)) if !given.contains(':') => names.push(name),
                Some(Host::Address) => {}
                _ => return Err(Unusable::Host(given.to_owned())),
            }
        }
        let origin = |given: &String| parse_origin(given).ok_or_else(|| Unusable::Origin(given.clone()));
        Ok(OriginPolicy {
            names,
            origins: told.allowed_origins.iter().map(origin).collect::<Result<_, _>>()?,
            checks_names: !told.has_keys || !told.allowed_hosts.is_empty(),
            checks_origins: !told.has_keys,
        })
    }

    /// Whether the request is to a name of this server. HTTP/1.1 has exactly one `Host` (RFC 9112, section 3.2); an
    /// absolute URI counts as well as the header.
    pub fn check_name<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host.to_str().map_err(|_| ApiError::bad_host())?),
            // No browser is so old.
            (None, _) if request.version() < Version::HTTP_11 => None,
            _ => return Err(ApiError::bad_host()),
        };
        for given in host.into_iter().chain(request.uri().authority().map(|authority| authority.as_str())) {
            let host = parse_host(given).ok_or_else(ApiError::bad_host)?;
            if self.checks_names && !self.is_ours(&host) {
                return Err(ApiError::unknown_host());
            }
        }
        Ok(())
    }

    fn is_ours(&self, host: &Host) -> bool {
        match host {
            Host::Address => true,
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost") || self.names.contains(name),
        }
    }

    /// Whether it is not the page of another site that makes a browser ask.
    pub fn check_origin<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let only_reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let passes = !self.checks_origins
            || only_reads && !request.uri().path().starts_with("/live/")
            || self.allowed_origin(request.headers()).is_some()
            || is_of_same_origin(request.headers(), request.uri());
        if passes { Ok(()) } else { Err(ApiError::cross_origin()) }
    }

    /// The origin of the request, if it is one that was allowed by name.
    fn allowed_origin(&self, headers: &HeaderMap) -> Option<&HeaderValue> {
        let origin = only(headers, &header::ORIGIN)?;
        self.origins.iter().find(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
    }

    /// The answer to a browser that asks whether a page of an allowed origin may ask; `None` for any other request.
    pub fn preflight<B>(&self, request: &Request<B>) -> Option<Response> {
        let headers = request.headers();
        let method = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        if request.method() != Method::OPTIONS || self.allowed_origin(headers).is_none() {
            return None;
        }
        let mut answer = StatusCode::NO_CONTENT.into_response();
        let may = answer.headers_mut();
        may.insert(header::ACCESS_CONTROL_ALLOW_METHODS, method.clone());
        may.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_AGE));
        // SDKs add headers of their own, and what a header says is checked where it is read.
        if let Some(names) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            may.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        Some(answer)
    }

    /// Lets the scripts of an allowed origin read an answer: call it with the request's headers before the request is
    /// gone, and what it returns with the answer.
    pub fn sharing(&self, headers: &HeaderMap) -> impl FnOnce(&mut Response) + use<> {
        let (depends, origin) = (!self.origins.is_empty(), self.allowed_origin(headers).cloned());
        move |answer| {
            let headers = answer.headers_mut();
            if depends {
                headers.append(header::VARY, HeaderValue::from_static("origin"));
            }
            if let Some(origin) = origin {
                // What `Server-Timing` says is for the scripts of others only where this names them.
                headers.insert(HeaderName::from_static("timing-allow-origin"), origin.clone());
                headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
                headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
            }
        }
    }
}

/// The header, where there is exactly one.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Not from another origin's page, or not from a page. `Sec-Fetch-Site` is the browser's own word, but it is not sent
/// to names without TLS; then the origin must be the host that was asked. Clients that are no browsers send neither.
fn is_of_same_origin(headers: &HeaderMap, uri: &Uri) -> bool {
    if headers.contains_key(FETCH_SITE) {
        return only(headers, &FETCH_SITE).is_some_and(|site| matches!(site.as_bytes(), b"same-origin" | b"none"));
    }
    if !headers.contains_key(header::ORIGIN) {
        return true;
    }
    let host = || headers.get(header::HOST).map(HeaderValue::as_bytes);
    let asked = uri.authority().map(|authority| authority.as_str().as_bytes()).or_else(host);
    let origin = only(headers, &header::ORIGIN).and_then(|origin| origin.to_str().ok()?.split_once("://"));
    origin.zip(asked).is_some_and(|((_, origin), asked)| origin.as_bytes().eq_ignore_ascii_case(asked))
}

/// What a `Host` names, without its port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// An IP address.
    Address,
    /// In lower case and without the dot of the root.
    Name(String),
}

/// `name[:port]`, `1.2.3.4[:port]`, `[::1][:port]`; `None` for anything else.
fn parse_host(text: &str) -> Option<Host> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        // The zone of a link-local address means something to the sender alone.
        let address = address.split_once('%').map_or(address, |(address, _)| address);
        return (is_port(port) && address.parse::<Ipv6Addr>().is_ok()).then_some(Host::Address);
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some(Host::Address); // as `--host` writes it
    }
    let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
    let name = name.strip_suffix('.').unwrap_or(name);
    let plain = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if !is_port(port) || !name.split('.').all(plain) {
        return None;
    }
    if name.parse::<Ipv4Addr>().is_ok() {
        return Some(Host::Address);
    }
    Some(Host::Name(name.to_ascii_lowercase()))
}

/// Nothing, or a colon and a number of 16 bits or none (RFC 3986 allows that).
fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        None => text.is_empty(),
        Some(digits) => {
            digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits.is_empty() || digits.parse::<u16>().is_ok())
        }
    }
}

/// An origin as a browser writes it: `https://app.example`, `http://localhost:3000`, `chrome-extension://abc`.
fn parse_origin(text: &str) -> Option<HeaderValue> {
    let (scheme, host) = text.split_once("://")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(plain);
    if !is_scheme || parse_host(host).is_none() {
        return None;
    }
    HeaderValue::from_str(&text.to_ascii_lowercase()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(host: &str, hosts: &[&str], origins: &[&str], has_keys: bool) -> Result<OriginPolicy, Unusable> {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let (allowed_hosts, allowed_origins) = (&owned(hosts)[..], &owned(origins)[..]);
        OriginPolicy::new(&OriginOptions { host, allowed_hosts, allowed_origins, has_keys })
    }

    #[test]
    fn hosts_are_addresses_names_or_nonsense() {
        let name = |text: &str| Some(Host::Name(text.to_owned()));
        let table = [
            ("127.0.0.1", Some(Host::Address)),
            ("127.0.0.1:8000", Some(Host::Address)),
            ("127.0.0.1.", Some(Host::Address)),
            ("192.168.1.20:80", Some(Host::Address)),
            ("[::1]:8000", Some(Host::Address)),
            ("[fe80::1%25eth0]:8000", Some(Host::Address)),
            ("[fe80::1%eth0]", Some(Host::Address)),
            ("::1", Some(Host::Address)),
            ("localhost:", name("localhost")),
            ("LocalHost.:8000", name("localhost")),
            ("Model-1.svc.Cluster.local", name("model-1.svc.cluster.local")),
            ("my_llm:8000", name("my_llm")),
            // A browser would have written 127.0.0.1 for these.
            ("127.1", name("127.1")),
            ("2130706433", name("2130706433")),
            ("0x7f.0.0.1", name("0x7f.0.0.1")),
            ("127.0.0.1.evil.example", name("127.0.0.1.evil.example")),
            ("", None),
            (":8000", None),
            (".", None),
            ("..", None),
            ("a..b", None),
            ("localhost..", None),
            ("localhost:80:80", None),
            ("localhost:65536", None),
            ("localhost:8a", None),
            ("localhost:-1", None),
            ("user@localhost", None),
            ("localhost/x", None),
            ("localhost,evil.example", None),
            ("localhost evil.example", None),
            ("[::1", None),
            ("[::1]x", None),
            ("[localhost]", None),
            ("[v1.x]", None),
            ("*", None),
            ("\u{fc}ber.example", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_host(text), expected, "{text}");
        }
    }

    #[test]
    fn what_no_request_could_have_is_refused_at_the_start() {
        for wrong in ["http://llm", "llm:8000", "*", "*.example.com", "", "llm/x", "b\u{fc}cher.example"] {
            assert_eq!(policy("127.0.0.1", &[wrong], &[], false).err(), Some(Unusable::Host(wrong.to_owned())));
        }
        for wrong in ["app.example", "https://app.example/", "*", "null", "https://", "://x", "https://a b"] {
            assert_eq!(policy("127.0.0.1", &[], &[wrong], false).err(), Some(Unusable::Origin(wrong.to_owned())));
        }
        let good = ["https://App.example", "http://localhost:3000", "chrome-extension://abcdef", "http://[::1]:3"];
        assert!(policy("0.0.0.0", &["llm", "10.0.0.1", "::1"], &good, false).is_ok());
    }

    #[test]
    fn names_are_asked_for_where_no_key_is_or_where_some_were_given() {
        let get = |host: &str| Request::get("/").header("host", host).body(()).unwrap();
        let table: [(&str, &[&str], bool, &str, bool); 9] = [
            ("127.0.0.1", &[], false, "localhost", true),
            ("127.0.0.1", &[], false, "a.localhost:8000", true),
            ("127.0.0.1", &[], false, "notlocalhost", false),
            ("127.0.0.1", &[], false, "llm", false),
            ("127.0.0.1", &["LLM."], false, "llm:8000", true),
            ("Box.lan", &[], false, "box.lan", true),
            ("0.0.0.0", &[], true, "llm", true),
            ("0.0.0.0", &["other"], true, "llm", false),
            ("0.0.0.0", &["other"], true, "other", true),
        ];
        for (host, allowed, has_keys, asked, expected) in table {
            let policy = policy(host, allowed, &[], has_keys).unwrap();
            assert_eq!(policy.check_name(&get(asked)).is_ok(), expected, "{host} {allowed:?} {has_keys} {asked}");
        }
    }

    #[test]
    fn a_request_is_of_the_same_origin_if_the_browser_says_so_or_its_headers_agree() {
        let policy = policy("127.0.0.1", &[], &["https://app.example"], false).unwrap();
        // (Sec-Fetch-Site, Origin, Host)
        let table = [
            ("", "", "localhost", true),
            ("same-origin", "https://proxy.example", "127.0.0.1:8000", true),
            ("none", "", "localhost", true),
            ("same-site", "http://localhost:1", "localhost:2", false),
            ("cross-site", "http://localhost:2", "localhost:2", false),
            ("cross-site", "https://APP.example", "localhost:2", true),
            ("SAME-ORIGIN", "", "localhost", false),
            ("", "http://localhost:2", "localhost:2", true),
            ("", "https://localhost:2", "LOCALHOST:2", true),
            ("", "http://localhost", "localhost:2", false),
            ("", "http://localhost:2.evil.example", "localhost:2", false),
            ("", "http://evil.example", "localhost", false),
            ("", "null", "localhost", false),
            ("", "localhost", "localhost", false),
            ("", "file://", "localhost", false),
        ];
        for (fetch_site, origin, host, expected) in table {
            for (method, path) in [("POST", "/tokenize"), ("PUT", "/x"), ("GET", "/live/feed"), ("HEAD", "/live/info")]
            {
                let mut request = Request::builder().method(method).uri(path).header("host", host);
                for (name, value) in [("sec-fetch-site", fetch_site), ("origin", origin)] {
                    request = if value.is_empty() { request } else { request.header(name, value) };
                }
                let passes = policy.check_origin(&request.body(()).unwrap()).is_ok();
                assert_eq!(passes, expected, "{method} {path} {fetch_site} {origin} {host}");
            }
        }
        let twice = Request::post("/").header("host", "a").header("origin", "http://a").header("origin", "http://a");
        assert!(policy.check_origin(&twice.body(()).unwrap()).is_err());
    }
}
