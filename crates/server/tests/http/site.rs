//! A page against the server, and one key against another: names, origins, and what `/live` shows to which key.

use engine::Observe;
use serde_json::json;

use crate::client::Answer;
use crate::host::{Host, keyed, local_server, small_engine, wait};

const TOKEN: &str = "0123456789abcdef";

fn exchange(host: &Host, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    host.send(method, path, &[headers, &[("connection", "close")]].concat(), body.as_bytes())
}

/// The answer to a head as it stands.
fn raw(host: &Host, head: &str) -> Answer {
    let mut connection = host.connect();
    connection.send(head.as_bytes());
    connection.answer()
}

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

/// Errors of other APIs than OpenAI's have no code.
fn coded<'a>(path: &str, code: &'a str) -> &'a str {
    if ["/api/", "/v1/messages"].iter().any(|others| path.starts_with(others)) { "" } else { code }
}

// row 77: DNS rebinding
#[test]
fn a_server_without_keys_is_served_under_its_own_names_only() {
    let mut options = local_server();
    options.allowed_hosts = vec!["llm.internal".into()];
    let host = Host::with(small_engine(), options);
    let get = |lines: &str| format!("GET /version HTTP/1.1\r\n{lines}connection: close\r\n\r\n");
    let table = [
        (get("host: 127.0.0.1:8000\r\n"), 200, ""),
        (get("host: 192.168.7.7\r\n"), 200, ""),
        (get("host: [::1]:8000\r\n"), 200, ""),
        (get("host: [fe80::1%25eth0]:8000\r\n"), 200, ""),
        (get("host: LOCALHOST:1\r\n"), 200, ""),
        (get("host: localhost.\r\n"), 200, ""),
        (get("host: app.localhost:8000\r\n"), 200, ""),
        (get("host: LLM.internal:8000\r\n"), 200, ""),
        (get("host: evil.example\r\n"), 403, "unknown_host"),
        (get("host: 127.0.0.1.evil.example\r\n"), 403, "unknown_host"),
        (get("host: localhost.evil.example:8000\r\n"), 403, "unknown_host"),
        (get("host: evillocalhost\r\n"), 403, "unknown_host"),
        (get("host: x.llm.internal\r\n"), 403, "unknown_host"),
        (get("host: 2130706433\r\n"), 403, "unknown_host"),
        (get(""), 400, "bad_host"),
        (get("host:\r\n"), 400, "bad_host"),
        (get("host: localhost\r\nhost: localhost\r\n"), 400, "bad_host"),
        (get("host: localhost\r\nhost: evil.example\r\n"), 400, "bad_host"),
        (get("host: evil.example, localhost\r\n"), 400, "bad_host"),
        (get("host: user@localhost\r\n"), 400, "bad_host"),
        (get("host: localhost:99999\r\n"), 400, "bad_host"),
        ("GET http://evil.example/version HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), 403, "unknown_host"),
        ("GET http://localhost/version HTTP/1.1\r\nhost: evil.example\r\n\r\n".into(), 403, "unknown_host"),
        ("GET http://localhost/version HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".into(), 200, ""),
        ("GET /version HTTP/1.0\r\n\r\n".into(), 200, ""),
        ("GET /version HTTP/1.0\r\nhost: evil.example\r\n\r\n".into(), 403, "unknown_host"),
    ];
    for (head, status, expected) in table {
        let answer = raw(&host, &head);
        assert_eq!((answer.status, code(&answer).as_str()), (status, expected), "{head}");
    }
    // Whatever the route: the page, health, metrics, and what does not exist.
    for (method, path) in server::routes() {
        let answer =
            raw(&host, &format!("{method} {path} HTTP/1.1\r\nhost: evil.example:8000\r\nconnection: close\r\n\r\n"));
        assert_eq!((answer.status, code(&answer).as_str()), (403, coded(path, "unknown_host")), "{method} {path}");
        assert!(answer.text().contains("--allowed-host") && !answer.text().contains("evil"), "{}", answer.text());
    }
    assert_eq!(host.engine.stats().finished_length, 0);
}

#[test]
fn a_key_serves_every_name_unless_some_were_given() {
    for (given, expected) in [(None, 200), (Some("llm"), 403)] {
        let mut options = keyed(&["sk-a"]);
        options.allowed_hosts = given.map(str::to_owned).into_iter().collect();
        let host = Host::with(small_engine(), options);
        let get = |host_line: &str, path: &str, key: &str| {
            let head =
                format!("GET {path} HTTP/1.1\r\n{host_line}authorization: Bearer {key}\r\nconnection: close\r\n\r\n");
            raw(&host, &head).status
        };
        assert_eq!(get("host: proxy.example\r\n", "/v1/models", "sk-a"), expected);
        assert_eq!(get("host: proxy.example\r\n", "/health", ""), expected);
        assert_eq!(get("host: 10.1.2.3:8000\r\n", "/v1/models", "sk-a"), 200);
        assert_eq!(get("host: 10.1.2.3:8000\r\n", "/v1/models", "sk-b"), 401);
        assert_eq!(get("", "/v1/models", "sk-a"), 400, "two or none are an error for all");
    }
}

// row 77: requests that a browser sends for a page of another site, with the types it sends unasked
#[test]
fn no_page_of_another_origin_makes_the_engine_work() {
    let mut options = local_server();
    options.hold_token = Some(TOKEN.into());
    let host = Host::with(small_engine(), options);
    let completion = json!({"prompt": "The fox", "max_tokens": 2, "ignore_eos": true}).to_string();
    let address = host.address.to_string();
    let own = format!("http://{address}");
    let pages: [&[(&str, &str)]; 6] = [
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://localhost:1"), ("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
        &[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
        &[("origin", "http://localhost.evil.example")],
    ];
    let posts = server::routes().filter(|(method, _)| *method == "POST").map(|(_, path)| path);
    let costly = posts.map(|path| ("POST", path)).chain([("GET", "/live/whatif"), ("GET", "/live/feed")]);
    for (method, path) in costly {
        for page in pages {
            for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
                let headers = [page, &[("content-type", kind)]].concat();
                let answer = exchange(&host, method, path, &headers, &completion);
                assert_eq!(
                    (answer.status, code(&answer).as_str()),
                    (403, coded(path, "cross_origin")),
                    "{method} {path} {headers:?}"
                );
                assert_eq!(answer.header("access-control-allow-origin"), None);
            }
        }
        // Asking whether it may gets no yes either.
        let asks = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
        let answer = exchange(&host, "OPTIONS", path, &asks, "");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
        assert!(answer.status >= 400, "{path}");
    }
    let stats = host.engine.stats();
    assert_eq!((stats.steps, stats.finished_length, host.engine.is_paused()), (0, 0, false));
    // What a page of an old browser, without any of these headers, may do at most: a type that is not JSON is not read.
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/plan"] {
            let old = [("content-type", kind), ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Firefox/60.0")];
            assert_eq!(exchange(&host, "POST", path, &old, &completion).status, 415, "{path}");
        }
    }
    let untyped = exchange(&host, "POST", "/v1/completions", &[("origin", "null")], &completion);
    assert_eq!(untyped.status, 403, "a script may send a body of no type, and says where it is from");
    // Our own page, a link to it from anywhere, and programs.
    for page in [format!("origin: {own}\r\n"), "sec-fetch-site: same-origin\r\n".into(), String::new()] {
        let length = completion.len();
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n");
        let rest = format!("content-type: application/json\r\nconnection: close\r\n{page}\r\n{completion}");
        assert_eq!(raw(&host, &(head + &rest)).status, 200, "{page}");
    }
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(exchange(&host, "GET", "/", &link, "").status, 200);
}

#[test]
fn an_allowed_origin_may_ask_and_read_and_no_other() {
    let mut options = keyed(&["sk-a"]);
    options.allowed_origins = vec!["https://App.example".into()];
    for keys in [vec![], vec!["sk-a".to_owned()]] {
        options.api_keys = keys.iter().map(|key| key.as_str().into()).collect();
        let host = Host::with(small_engine(), options.clone());
        let asks = |origin: &'static str| {
            [
                ("origin", origin),
                ("access-control-request-method", "POST"),
                ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
            ]
        };
        let answer = exchange(&host, "OPTIONS", "/v1/chat/completions", &asks("https://app.example"), "");
        let allowed = |answer: &Answer| answer.header("access-control-allow-origin").map(str::to_owned);
        assert_eq!((answer.status, allowed(&answer).as_deref()), (204, Some("https://app.example")));
        assert_eq!(answer.header("access-control-allow-methods"), Some("POST"));
        assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,content-type,x-stainless-os"));
        assert_eq!(answer.header("vary"), Some("origin"));
        let body = json!({"prompt": "The fox", "max_tokens": 2}).to_string();
        let post = |origin: &'static str| {
            let headers = [
                ("origin", origin),
                ("sec-fetch-site", "cross-site"),
                ("authorization", "Bearer sk-a"),
                ("content-type", "application/json"),
            ];
            exchange(&host, "POST", "/v1/completions", &headers, &body)
        };
        let answer = post("https://app.example");
        assert_eq!((answer.status, allowed(&answer).as_deref()), (200, Some("https://app.example")));
        assert!(answer.header("access-control-allow-credentials").is_none());
        for other in ["https://app.example.evil", "http://app.example", "null"] {
            let answer = exchange(&host, "OPTIONS", "/v1/completions", &asks(other), "");
            assert!(answer.status >= 400 && allowed(&answer).is_none(), "{other}");
            let answer = post(other);
            // With a key it is served, but no browser gives the answer to the page.
            assert_eq!((answer.status, allowed(&answer)), (if keys.is_empty() { 403 } else { 200 }, None), "{other}");
            assert_eq!(answer.header("vary"), Some("origin"));
        }
        // A refusal can be read too, or the page would not know why.
        let refused = exchange(&host, "GET", "/v1/models/none", &[("origin", "https://app.example")], "");
        assert_eq!(allowed(&refused).as_deref(), Some("https://app.example"));
    }
}

// row 74: what another key asked is seen by no other key, on no route of the page
#[test]
fn a_key_sees_of_another_that_it_is_served_and_not_what_it_said() {
    let mut options = keyed(&["sk-a", "sk-b"]);
    options.hold_token = Some(TOKEN.into());
    let host = Host::with(small_engine(), options);
    let (a, b) = (("authorization", "Bearer sk-a"), ("authorization", "Bearer sk-b"));
    let secret = "The zebra keeps a lantern";
    let body = json!({"prompt": secret, "max_tokens": 8, "temperature": 0, "ignore_eos": true, "user": "zq-user"});
    let named = ("x-request-id", "secret-name-of-a");
    let answer = exchange(
        &host,
        "POST",
        "/v1/completions",
        &[a, named, ("content-type", "application/json")],
        &body.to_string(),
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (id, text) = (answer.json()["id"].clone(), answer.json()["choices"][0]["text"].clone());
    let (id, text) = (id.as_str().unwrap().to_owned(), text.as_str().unwrap().trim().to_owned());
    wait("its end", || host.engine.health().open_requests == 0);
    let mut feed = host.connect();
    feed.request("GET", "/live/feed?kv=1&after=0", &[b], b"");
    feed.head().expect("a head");
    let mut seen = Vec::new();
    while !std::str::from_utf8(&seen).is_ok_and(|seen| seen.contains("event: stats") && seen.contains("event: kv")) {
        feed.chunk(&mut seen);
    }
    let mut pages = vec![("feed".to_owned(), String::from_utf8(seen).unwrap())];
    for path in ["/live/info", "/live/whatif", "/metrics", "/plan/presets", "/v1/models", "/health"] {
        let answer = exchange(&host, "GET", path, &[b], "");
        assert!(answer.status == 200 || path == "/live/whatif", "{path} {}", answer.text());
        pages.push((path.to_owned(), answer.text().to_owned()));
    }
    for name in [&id, "secret-name-of-a"] {
        let path = format!("/v1/requests/{name}/timeline");
        assert_eq!(exchange(&host, "GET", &path, &[b], "").status, 404);
        assert_eq!(exchange(&host, "GET", &path, &[a], "").status, 200);
    }
    for (path, page) in &pages {
        for leak in [secret, "zebra", &text, &id, "secret-name-of-a", "zq-user", "sk-a", TOKEN] {
            assert!(!page.contains(leak), "{path} tells {leak}");
        }
    }
    // A key pauses nothing without the token, and the token nothing without a key.
    assert_eq!(exchange(&host, "POST", "/live/pause", &[b], "").status, 403);
    assert_eq!(exchange(&host, "POST", "/live/pause", &[("x-hold-token", TOKEN)], "").status, 401);
    assert_eq!(exchange(&host, "POST", "/live/pause", &[b, ("x-hold-token", TOKEN)], "").status, 200);
}
