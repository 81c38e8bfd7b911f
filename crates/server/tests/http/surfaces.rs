//! Keys, headers, health and metrics: what can be seen without asking the model anything.

use serde_json::json;

use crate::host::{Host, keyed, local_server, metric, small_engine};

const KEY: &str = "sk-lantern-0123456789";

fn locked() -> Host {
    Host::with(small_engine(), keyed(&[KEY, "sk-other"]))
}

fn status(host: &Host, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
    host.send(method, path, &[headers, &[("connection", "close")]].concat(), b"").status
}

// row 75: denying is the default
#[test]
fn every_route_but_health_the_page_and_the_document_needs_the_key() {
    let host = locked();
    let bearer = format!("Bearer {KEY}");
    let mut paths: Vec<_> = server::routes().map(|(_, path)| path.replace("{*model}", "lantern")).collect();
    assert!(paths.len() >= 9);
    paths.extend(
        [
            "//",
            "/index.html",
            "/app.js/",
            "/./app.js",
            "//v1/models",
            "/v1//models",
            "/v1/models/",
            "/V1/MODELS",
            "/v1/./models",
            "/v1/../v1/models",
            "/x/../v1/models",
            "/v1%2fmodels",
            "/v1%2Fmodels",
            "/%761/models",
            "/v1/models%00",
            "/v1/models?x=/health",
            "/health/../v1/models",
            "/health/",
            "//health",
            "/HEALTH",
            "/health%2f..%2fmetrics",
            "/health;/metrics",
            "http://other/v1/models",
            "/docs/",
            "//docs",
            "/openapi.json/",
            "/openapi.yaml",
            "/metrics/",
            "/admin",
            "/v1/models#/health",
        ]
        .map(String::from),
    );
    for path in &paths {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
            // Slashes that stand twice or at the end are as if they were not there.
            let plain = format!("/{}", path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"));
            let is_file =
                ["/app.js", "/calculator.js", "/highlight.js", "/tour.js", "/app.css", "/favicon.svg", "/licences.txt"]
                    .contains(&plain.as_str());
            let is_open = is_file || ["/health", "/", "/docs", "/openapi.json"].contains(&plain.as_str());
            let open = method == "GET" && is_open;
            let expected = if open { 200 } else { 401 };
            assert_eq!(status(&host, method, path, &[]), expected, "{method} {path}");
            let wrong = ["Bearer wrong", "Bearer ", "Basic x", KEY, "Bearer sk-lantern-012345678", "Bearer sk-other2"];
            for wrong in testing::one_of(wrong, path.len()) {
                assert_eq!(
                    status(&host, method, path, &[("authorization", wrong)]),
                    expected,
                    "{method} {path} {wrong}"
                );
            }
            // A feed has no end.
            if path != "/live/feed" {
                assert_ne!(status(&host, method, path, &[("authorization", &bearer)]), 401, "{method} {path}");
            }
        }
    }
    // HTTP/1.0 and the absolute form are no way around either.
    for head in ["GET /v1/models HTTP/1.0\r\n\r\n", "GET http://localhost/v1/models HTTP/1.1\r\nhost: health\r\n\r\n"] {
        let mut connection = host.connect();
        connection.send(head.as_bytes());
        assert_eq!(connection.answer().status, 401, "{head}");
    }
    let refused = host.get("/v1/models");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
    assert!(!refused.text().contains("sk-"));
}

// row 71: what one key has sent is in no other key's cache
#[test]
fn two_keys_share_no_prefix() {
    let host = locked();
    let body = json!({"prompt": "The fox and the lantern. ".repeat(20), "max_tokens": 2, "temperature": 0}).to_string();
    let cached = |key: &str| {
        let answer = host.begin(key, "POST", "/v1/completions", &body).answer();
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(KEY), 0);
    assert!(cached(KEY) > 0, "a tenant's own prefix is found");
    assert_eq!(cached("sk-other"), 0);
    assert!(cached("sk-other") > 0);
}

#[test]
fn an_empty_key_is_not_a_key() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for key in ["", " ", "\t"] {
        let host = Host::start();
        let mut options = local_server();
        options.api_keys = vec!["good".into(), key.into()];
        let bound = runtime.block_on(server::Server::bind(host.engine.clone(), options));
        assert!(matches!(bound, Err(server::ServeError::EmptyApiKey)));
    }
}

#[test]
fn an_address_that_is_taken_is_an_error_that_names_it() {
    let host = Host::start();
    let mut options = local_server();
    options.port = host.address.port();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error =
        runtime.block_on(server::Server::bind(host.engine.clone(), options)).err().expect("one port, one server");
    assert!(error.to_string().contains(&host.address.port().to_string()), "{error}");
}

#[test]
fn unknown_routes_and_methods_have_openais_errors() {
    let host = Host::start();
    for (method, path, expected) in [
        ("GET", "/index.html", 404),
        ("POST", "/", 405),
        ("POST", "/live/feed", 405),
        ("POST", "/v1/audio/speech", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("TRACE", "/v1/files?limit=5", 405),
        ("GET", "/v1/completions?x=1", 405),
        ("GET", "/V1/models", 404),
    ] {
        let answer = host.send(method, path, &[], b"");
        assert_eq!(answer.status, expected, "{method} {path}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("allow").is_some(), expected == 405, "{method} {path}");
    }
}

#[test]
fn a_slash_behind_a_path_is_as_good_as_none() {
    let host = Host::with(small_engine(), keyed(&["key"]));
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).to_string();
    let status = |method: &str, path: &str, has_key: bool, body: &str| {
        let headers = [("content-type", "application/json"), ("authorization", "Bearer key")];
        host.send(method, path, &headers[..1 + usize::from(has_key)], body.as_bytes()).status
    };
    for (method, path, body) in [
        ("GET", "/v1/models/", ""),
        ("GET", "/v1/models/lantern/", ""),
        ("GET", "/v1/requests/?limit=1", ""),
        ("POST", "/v1/chat/completions/", &chat),
        ("GET", "/v1//models", ""),
        ("GET", "//v1/models", ""),
        ("GET", "/v1/models//", ""),
        ("GET", "///metrics//", ""),
        ("POST", "//v1//chat///completions", &chat),
    ] {
        assert_eq!(status(method, path, true, body), 200, "{path}");
        assert_eq!(status(method, path, false, body), 401, "{path}: it is no way around the key");
    }
    for path in ["/v1/nowhere/", "/v1/", "//v1//nowhere"] {
        assert_eq!(status("GET", path, true, ""), 404, "{path}");
    }
    let mut connection = host.connect();
    connection.request("GET", "/metrics", &[("authorization", "Bearer key")], b"");
    let page = connection.answer();
    let count = metric(page.text(), "twostroke_http_requests_total{route=\"/v1/models\",status=\"200\"}");
    assert_eq!(count, 4.0, "a route has one name");
}

// row 21
#[test]
fn a_request_id_is_echoed_when_it_is_harmless_and_never_used() {
    let host = Host::start();
    let echoed = |id: &str| {
        let mut connection = host.connect();
        connection.request("GET", "/version", &[("x-request-id", id)], b"");
        connection.answer().header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(echoed("mine-1"), "mine-1");
    let longest = "x".repeat(128);
    assert_eq!(echoed(&longest), longest);
    for refused in ["", "x y", "a\tb", "caf\u{e9}", &"x".repeat(129), &"x".repeat(20_000)] {
        assert!(echoed(refused).starts_with("req-"), "{refused:.20}");
    }
    // The same name twice at once is two requests.
    let body = json!({"prompt": "The fox", "max_tokens": 4, "temperature": 0}).to_string();
    let mut pair = [host.connect(), host.connect()];
    for connection in &mut pair {
        connection.request(
            "POST",
            "/v1/completions",
            &[("content-type", "application/json"), ("x-request-id", "same"), ("x-forwarded-for", "10.0.0.1")],
            body.as_bytes(),
        );
    }
    let [one, two] = pair.map(|mut connection| connection.answer().json());
    assert_eq!(one["choices"], two["choices"]);
    assert_ne!(one["id"], two["id"]);
}

#[test]
fn health_is_the_engines() {
    let host = Host::start();
    let health = host.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("ok")));
    host.engine.drain();
    assert_eq!(host.get("/health").status, 503);
    host.engine.stop();
    crate::host::wait("the engine to end", || host.engine.health().dead);
    let health = host.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("dead")));
    // A dead engine refuses; it does not hang.
    assert_eq!(host.post("/v1/completions", &json!({"prompt": "a"})).status, 503);
}

// row 78, and invariant: gauges are recomputed truth
#[test]
fn metrics_count_what_happened() {
    let host = Host::start();
    let before = host.get("/metrics");
    assert_eq!(before.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let body = json!({"prompt": "The fox and the lantern. ".repeat(10), "max_tokens": 5, "temperature": 0, "ignore_eos": true});
    let first = host.ask("/v1/completions", &body);
    let second = host.ask("/v1/completions", &body);
    host.post("/v1/completions", &json!({"prompt": "a", "n": 0, "user": "zq-user", "model": "lantern"}));
    host.quiet();
    let page = host.get("/metrics");
    let page = page.text();
    let sum = |field: &str| first["usage"][field].as_f64().unwrap() + second["usage"][field].as_f64().unwrap();
    let vllm = |name: &str| metric(page, &format!("vllm:{name}{{model_name=\"lantern\",engine=\"0\"}}"));
    for (name, expected) in [
        ("prompt_tokens_total", sum("prompt_tokens")),
        ("generation_tokens_total", 10.0),
        ("prompt_tokens_cached_total", second["usage"]["prompt_tokens_details"]["cached_tokens"].as_f64().unwrap()),
        ("num_requests_running", 0.0),
        ("num_requests_waiting", 0.0),
        ("kv_cache_usage_perc", 0.0),
        ("num_preemptions_total", 0.0),
        ("time_to_first_token_seconds_count", 2.0),
        ("e2e_request_latency_seconds_count", 2.0),
        ("request_queue_time_seconds_count", 2.0),
        ("inter_token_latency_seconds_count", 8.0),
        ("request_prompt_tokens_sum", sum("prompt_tokens")),
        ("request_generation_tokens_sum", 10.0),
    ] {
        assert_eq!(vllm(name), expected, "{name}");
        assert_eq!(metric(page, &format!("twostroke_{}", own_name(name))), expected, "{name}");
    }
    // vLLM's word for what clients are told in a step; ours for the rows that were computed, without what the cache had
    // and without a row for the first token of an answer.
    assert_eq!(vllm("iteration_tokens_total_sum"), sum("prompt_tokens") + 10.0);
    assert_eq!(vllm("iteration_tokens_total_count"), 10.0, "each step brought one token");
    let rows = sum("prompt_tokens") - vllm("prompt_tokens_cached_total") + 8.0;
    assert_eq!(metric(page, "twostroke_iteration_tokens_sum"), rows);
    assert!(
        vllm("prefix_cache_hits_total") > 0.0 && vllm("prefix_cache_hits_total") < vllm("prefix_cache_queries_total")
    );
    let finished = "vllm:request_success_total{model_name=\"lantern\",engine=\"0\",finished_reason=\"length\"}";
    assert_eq!(metric(page, finished), 2.0);
    assert_eq!(metric(page, "twostroke_http_requests_total{route=\"/v1/completions\",status=\"400\"}"), 1.0);
    for leak in ["zq-user", "fox"] {
        assert!(!page.contains(leak), "a client's text is on the page");
    }
    // The format: a sample belongs to a family that was described, and every histogram rises to its count.
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let described = |name: &str| page.contains(&format!("# TYPE {name} "));
        assert!(described(name) || described(family), "{name} is not described");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
}

fn own_name(vllm: &str) -> &str {
    match vllm {
        "num_requests_running" => "requests_running",
        "num_requests_waiting" => "requests_waiting",
        "kv_cache_usage_perc" => "kv_cache_usage_ratio",
        same => same,
    }
}
