//! The page, and the feed that it is made of: what is in it, who may see what, and when it ends.

use std::io::ErrorKind;

use engine::Observe;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::{Host, LONG, keyed, local_server, small_engine, wait};

/// How long a feed may take to say what is waited for.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);
/// What holds the engine.
const TOKEN: &str = "0123456789abcdef";
const PROMPT: &str = "The fox looked at the lantern in the window.";

/// A feed as its reader has it.
struct Feed {
    connection: Connection,
    text: Vec<u8>,
    events: Vec<(String, Value)>,
    has_ended: bool,
    /// The server may close it, because it was not read for long.
    may_be_cut: bool,
}

impl Feed {
    fn open(host: &Host, query: &str, headers: &[(&str, &str)]) -> Feed {
        let mut connection = host.connect();
        connection.request("GET", &format!("/live/feed{query}"), headers, b"");
        let (status, headers) = connection.head().expect("a head");
        assert_eq!(status, 200);
        let kind = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        assert_eq!(kind.map(|(_, value)| value.as_str()), Some("text/event-stream; charset=utf-8"));
        Feed { connection, text: Vec::new(), events: Vec::new(), has_ended: false, may_be_cut: false }
    }

    /// Reads until `is_enough`, or until the feed ends. A feed never falls silent, so the limit is its own.
    fn until(&mut self, is_enough: impl Fn(&Feed) -> bool) {
        let begun = std::time::Instant::now();
        while !self.has_ended && !is_enough(self) {
            assert!(begun.elapsed() < PATIENCE, "not in five minutes; the last that came: {:?}", self.events.last());
            self.has_ended = match self.connection.try_chunk(&mut self.text) {
                Err(error) if self.may_be_cut && error.kind() == ErrorKind::ConnectionReset => true,
                chunk => !chunk.expect("a chunk"),
            };
            if self.has_ended {
                return;
            }
            let text = std::str::from_utf8(&self.text).expect("events are whole in each chunk");
            for event in text.split("\n\n").filter(|event| !event.is_empty()) {
                let (name, data) = event.split_once('\n').expect("two lines");
                let name = name.strip_prefix("event: ").expect("its name").to_owned();
                let data = data.strip_prefix("data: ").expect("its data");
                self.events.push((name, serde_json::from_str(data).unwrap_or_else(|_| panic!("not JSON: {data}"))));
            }
            self.text.clear();
        }
    }

    fn all(&self, name: &str) -> Vec<&Value> {
        self.events.iter().filter(|(event, _)| event == name).map(|(_, data)| data).collect()
    }

    /// Reads until this many requests have ended.
    fn until_ended(&mut self, count: usize) {
        self.until(|feed| feed.all("ended").len() >= count);
    }

    /// Every row of every step: the step's number, the phase, the row.
    fn rows(&self) -> Vec<(u64, &'static str, &Value)> {
        let mut rows = Vec::new();
        for step in self.all("step") {
            let id = step["id"].as_u64().expect("a number");
            for phase in ["prefill", "decode"] {
                rows.extend(step[phase].as_array().expect("rows").iter().map(|row| (id, phase, row)));
            }
        }
        rows
    }
}

#[test]
fn the_page_is_served_with_its_policy_and_without_a_key() {
    let host = Host::with(small_engine(), keyed(&["sk-a"]));
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/calculator.js", "text/javascript; charset=utf-8"),
        ("/highlight.js", "text/javascript; charset=utf-8"),
        ("/tour.js", "text/javascript; charset=utf-8"),
        ("/licences.txt", "text/plain; charset=utf-8"),
        ("/app.css", "text/css; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml"),
    ] {
        let answer = host.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        let policy = answer.header("content-security-policy").expect("a policy");
        for rule in ["default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(rule), "{rule} in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in
            [("x-content-type-options", "nosniff"), ("x-frame-options", "DENY"), ("referrer-policy", "no-referrer")]
        {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
        // A reader that has it does not get it again.
        let tag = answer.header("etag").expect("a tag").to_owned();
        let mut connection = host.connect();
        connection.request("GET", path, &[("if-none-match", &tag), ("connection", "close")], b"");
        let (status, _) = connection.head().expect("a head");
        assert_eq!(status, 304, "{path}");
    }
    assert_eq!(host.get("/live/info").status, 401);
    assert_eq!(host.get("/live/feed").status, 401);
}

#[test]
fn the_page_asks_no_other_host() {
    let host = Host::start();
    for path in ["/", "/app.css"] {
        let page = host.get(path).text().to_owned();
        for outside in ["http://", "https://", "//cdn"] {
            let elsewhere = page.match_indices(outside).any(|(at, _)| !page[at..].starts_with("http://www.w3.org/"));
            assert!(!elsewhere, "{outside} in {path}");
        }
    }
    let html = host.get("/").text().to_owned();
    assert!(!html.contains("<style") && !html.contains(" style=") && !html.contains(" onclick"), "nothing inline");
    let scripts = html.matches("<script").count();
    assert_eq!(html.matches("<script type=\"module\"").count(), scripts, "no inline script: {html}");
    assert!(html.match_indices("<script").all(|(at, _)| html[at..].split('>').next().unwrap().contains("src=")));
}

#[test]
fn without_the_page_there_is_nothing_of_it() {
    let mut options = local_server();
    options.ui = false;
    let host = Host::with(small_engine(), options);
    for path in ["/", "/app.js", "/live/info", "/live/feed"] {
        assert_eq!(host.get(path).status, 404, "{path}");
    }
    assert_eq!(host.get("/health").status, 200);
}

#[test]
fn info_tells_what_is_served() {
    let host = Host::start();
    let info = host.get("/live/info").json();
    let model = host.engine.model();
    assert_eq!(info["name"], "lantern");
    assert_eq!((&info["weights"], &info["kv_dtype"]), (&json!("bf16"), &json!("bf16")));
    for (name, value) in [
        ("block_size", model.block_size),
        ("blocks", model.num_blocks),
        ("max_model_len", 1024),
        ("max_num_seqs", 16),
        ("max_num_batched_tokens", 128),
        ("threads", 1),
        ("kv_bytes_per_token", model.kv_bytes_per_token),
    ] {
        assert_eq!(info[name], value, "{name}");
    }
    assert!(info["limits"].is_null(), "they were not measured for this server");
    assert!(info["now_ms"].as_f64() > Some(0.0));
}

#[test]
fn a_feed_shows_a_request_from_its_prompt_to_its_end() {
    let host = Host::start();
    let mut feed = Feed::open(&host, "", &[]);
    let body = json!({"prompt": PROMPT.repeat(30), "max_tokens": 9, "temperature": 0, "ignore_eos": true});
    let answer = host.ask("/v1/completions", &body);
    feed.until_ended(1);
    let (id, prompt_tokens) = (&answer["id"], answer["usage"]["prompt_tokens"].as_u64().expect("a count"));
    // Steps are numbered without a gap, and each says what it was and took.
    let steps = feed.all("step");
    assert_eq!(steps[0]["id"], 0);
    assert!(steps.windows(2).all(|pair| pair[0]["id"].as_u64().map(|id| id + 1) == pair[1]["id"].as_u64()));
    for step in &steps {
        for name in ["at", "took", "flops", "bytes"] {
            assert!(step[name].as_f64() > Some(0.0), "{name} in {step}");
        }
        assert!(step["blocked"].is_null() && step["waiting"] == 0 && step["blocks"]["used"].as_u64() > Some(0));
    }
    assert!(steps.windows(2).all(|pair| pair[0]["at"].as_f64() < pair[1]["at"].as_f64()));
    // Its prompt in chunks, then a token at a time, all under the name of the answer.
    let rows = feed.rows();
    assert!(rows.iter().all(|(_, _, row)| row["r"] == *id), "{rows:?}");
    let prefill: Vec<&Value> = rows.iter().filter(|row| row.1 == "prefill").map(|row| row.2).collect();
    let sum = |name: &str| prefill.iter().map(|row| row[name].as_u64().expect("a count")).sum::<u64>();
    assert_eq!((sum("len"), sum("samples"), sum("cached")), (prompt_tokens, 1, 0));
    assert!(prefill.len() > 1, "chunks of at most 128");
    let decode: Vec<u64> =
        rows.iter().filter(|row| row.1 == "decode").map(|row| row.2["start"].as_u64().expect("a place")).collect();
    assert_eq!(decode, (prompt_tokens..prompt_tokens + 8).collect::<Vec<_>>());
    // What a step asks of the machine: a prompt asks for more arithmetic for each byte.
    let intensity = |step: &Value| step["flops"].as_f64().expect("a sum") / step["bytes"].as_f64().expect("a sum");
    assert!(intensity(steps[0]) > 10.0 * intensity(steps[steps.len() - 1]));
    let ended = feed.all("ended")[0];
    assert_eq!((&ended["r"], &ended["ending"]), (id, &json!("length")));
    assert_eq!((&ended["prompt_tokens"], &ended["generated"]), (&json!(prompt_tokens), &json!(9)));
    let ttft = answer["timings"]["ttft_ms"].as_f64().expect("a time");
    assert!((ended["ttft_ms"].as_f64().expect("a time") - ttft).abs() < 0.01, "{ended} {ttft}");
    // In the end there are no requests, and the counters have counted.
    feed.until(|feed| feed.all("stats").last().is_some_and(|stats| stats["decode_tokens"] == 8));
    let stats = feed.all("stats").last().copied().expect("stats").clone();
    assert_eq!((&stats["prefill_tokens"], &stats["steps"]), (&json!(prompt_tokens), &json!(feed.all("step").len())));
    for name in ["ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"] {
        assert!(stats[name].as_f64() > Some(0.0), "{name} in {stats}");
    }
    feed.until(|feed| feed.all("requests").last().is_some_and(|all| all["running"] == json!([])));
}

#[test]
fn who_waits_and_who_runs_is_shown_while_it_lasts() {
    let (mut engine, mut options) = (small_engine(), local_server());
    engine.max_num_seqs = 1;
    options.hold_token = Some(TOKEN.into());
    let host = Host::with(engine, options);
    let mut feed = Feed::open(&host, "", &[]);
    // Paused, so that it lasts.
    assert_eq!(post(&host, "/live/pause"), json!(true));
    let body = json!({"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": true});
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| host.ask("/v1/completions", &body));
        }
        wait("both to come", || host.engine.health().open_requests == 2);
        assert_eq!(post(&host, "/live/step"), json!(true));
        let lens = |all: &Value, list: &str| all[list].as_array().map_or(0, Vec::len);
        feed.until(|feed| {
            feed.all("requests").iter().any(|all| lens(all, "waiting") == 1 && lens(all, "running") == 1)
        });
        let seen = feed.all("requests").into_iter().rfind(|all| lens(all, "waiting") == 1).expect("it was seen");
        let (waiting, running) = (&seen["waiting"][0], &seen["running"][0]);
        assert_ne!(waiting["r"], running["r"]);
        assert_eq!((&waiting["computed"], &waiting["generated"]), (&json!(0), &json!(0)));
        assert!(running["computed"].as_u64() >= waiting["prompt_tokens"].as_u64(), "{running}");
        feed.until(|feed| feed.all("step").iter().any(|step| step["blocked"] == "seats"));
        assert_eq!(post(&host, "/live/resume"), json!(false));
    });
    feed.until_ended(2);
}

#[test]
fn a_step_that_a_prompt_shares_with_an_answer_says_whose_time_it_was() {
    let mut options = local_server();
    options.hold_token = Some(TOKEN.into());
    let host = Host::with(small_engine(), options);
    let mut feed = Feed::open(&host, "", &[]);
    let ask = |repeat, tokens| {
        let prompt = PROMPT.repeat(repeat);
        host.ask("/v1/completions", &json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true}))
    };
    assert_eq!(post(&host, "/live/pause"), json!(true));
    std::thread::scope(|scope| {
        scope.spawn(|| ask(1, 40));
        wait("the stream", || host.engine.health().open_requests == 1);
        assert_eq!(post(&host, "/live/step"), json!(true));
        scope.spawn(|| ask(25, 1));
        wait("the prompt", || host.engine.health().open_requests == 2);
        assert_eq!(post(&host, "/live/resume"), json!(false));
    });
    feed.until_ended(2);
    let share = |row: &Value, name: &str| row[name].as_f64();
    let (mixed, alone): (Vec<&Value>, Vec<&Value>) = feed.all("step").into_iter().partition(|step| {
        [&step["decode"], &step["prefill"]].iter().all(|rows| rows.as_array().is_some_and(|rows| !rows.is_empty()))
    });
    assert!(!mixed.is_empty() && !alone.is_empty());
    for step in mixed {
        let (victim, prompt) = (&step["decode"][0], &step["prefill"][0]);
        let [own, others] = ["own", "other_prefill"].map(|name| share(victim, name).expect("a share"));
        assert!(own > 0.0 && others > 0.0 && (own + others - 1.0).abs() < 0.002, "no other request is there: {step}");
        assert_eq!(share(prompt, "other_prefill"), Some(0.0), "{step}");
        assert!(share(prompt, "own").is_some_and(|own| own > 0.5), "{step}");
    }
    for step in alone {
        assert!(step["decode"][0]["own"].is_null() && step["prefill"][0]["own"].is_null(), "{step}");
    }
}

#[test]
fn a_tenant_sees_its_own_names_and_numbers_for_the_rest() {
    let host = Host::with(small_engine(), keyed(&["sk-a", "sk-b"]));
    let ask = |key: &str| {
        let body = json!({"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": true}).to_string();
        host.begin(key, "POST", "/v1/completions", &body).answer().json()["id"].clone()
    };
    let mut feed = Feed::open(&host, "?after=0", &[("authorization", "Bearer sk-a")]);
    let (mine, theirs) = (ask("sk-a"), ask("sk-b"));
    feed.until_ended(2);
    let rows = feed.rows();
    assert!(rows.iter().any(|row| row.2["r"] == mine));
    let others: Vec<&Value> = rows.iter().map(|row| &row.2["r"]).filter(|name| **name != mine).collect();
    assert!(!others.is_empty() && others.iter().all(|name| name.is_u64() && *name == others[0]), "{others:?}");
    let ended: Vec<&Value> = feed.all("ended").into_iter().map(|ended| &ended["r"]).collect();
    assert_eq!(ended, [&mine, others[0]], "the same names everywhere");
    let everything = format!("{:?}", feed.events);
    assert!(!everything.contains(theirs.as_str().expect("an id")));
}

#[test]
fn a_reader_says_where_to_begin() {
    let host = Host::start();
    host.ask("/v1/completions", &json!({"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": true}));
    for (query, first) in [("", 0), ("?after=29", 30), ("?after=30&", 31)] {
        let mut feed = Feed::open(&host, query, &[]);
        feed.until(|feed| feed.all("step").last().is_some_and(|step| step["id"] == 39));
        assert_eq!(feed.all("step")[0]["id"], first, "{query}");
    }
    // Who has seen more than there is waits for what comes.
    let mut feed = Feed::open(&host, "?after=99999", &[]);
    host.ask("/v1/completions", &json!({"prompt": "Once", "max_tokens": 1}));
    feed.until_ended(1);
    assert_eq!(feed.all("step")[0]["id"], 40);
    for (query, param) in [
        ("?after=", "after"),
        ("?after=-1", "after"),
        ("?after=x", "after"),
        ("?after=99999999999999999999", "after"),
        ("?before=1", "before"),
    ] {
        let answer = host.get(&format!("/live/feed{query}"));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{query}");
    }
    for name in ["x".repeat(4000), "%3cscript%3e".to_owned()] {
        assert_eq!(host.get(&format!("/live/feed?{name}=1")).json()["error"]["param"], Value::Null);
    }
}

#[test]
fn there_are_seats_for_so_many_readers() {
    let host = Host::start();
    let mut feeds: Vec<Feed> = (0..16).map(|_| Feed::open(&host, "", &[])).collect();
    let refused = host.get("/live/feed");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("too_many_readers")));
    assert!(refused.header("retry-after").is_some());
    // The others go on, and one that leaves makes room.
    feeds[15].until(|feed| feed.all("stats").len() >= 2);
    feeds.pop();
    wait("the seat to be free", || {
        let mut connection = host.connect();
        connection.request("GET", "/live/feed", &[], b"");
        connection.head().expect("a head").0 == 200
    });
}

#[test]
fn a_reader_that_does_not_read_is_not_waited_for() {
    let host = Host::start();
    let mut lazy = Feed::open(&host, "", &[]);
    // More than sockets hold.
    let body = json!({"prompt": PROMPT, "max_tokens": 900, "temperature": 0, "ignore_eos": true, "n": 16});
    let answer = host.ask("/v1/completions", &body);
    assert_eq!(answer["usage"]["completion_tokens"], 900 * 16);
    let newest = host.engine.stats().steps - 1;
    lazy.may_be_cut = true;
    lazy.until(|feed| feed.all("step").last().is_some_and(|step| step["id"] == newest));
}

#[test]
fn a_feed_ends_when_the_server_drains() {
    let mut host = Host::start();
    let mut feed = Feed::open(&host, "", &[]);
    feed.until(|feed| !feed.all("stats").is_empty());
    host.stop.drain();
    feed.until(|_| false);
    assert!(feed.has_ended);
    host.join();
}

/// Those who watch may hold it.
pub(crate) fn pausable() -> Host {
    let mut options = local_server();
    options.hold_token = Some(TOKEN.into());
    options.pause_limit = LONG;
    Host::with(small_engine(), options)
}

pub(crate) fn post(host: &Host, path: &str) -> Value {
    let answer = host.send("POST", path, &[("x-hold-token", TOKEN), ("connection", "close")], b"");
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()["paused"].clone()
}

#[test]
fn a_paused_engine_makes_one_step_at_a_time_and_fails_no_request() {
    let host = pausable();
    let body = |prompt: &str| json!({"prompt": prompt, "max_tokens": 300, "temperature": 0, "ignore_eos": true, "timings_detail": true});
    let alone = host.ask("/v1/completions", &body(PROMPT))["choices"].clone();
    let mut feed = Feed::open(&host, "?kv=1", &[]);
    std::thread::scope(|scope| {
        assert_eq!(post(&host, "/live/pause"), json!(true));
        assert_eq!(post(&host, "/live/pause"), json!(true), "twice is once");
        let first = scope.spawn(|| host.ask("/v1/completions", &body(PROMPT)));
        host.step_into(2);
        let second = scope.spawn(|| host.ask("/v1/completions", &body("Once upon a time")));
        wait("another to come", || host.engine.health().open_requests == 2);
        let steps = || host.engine.stats().steps;
        let before = steps();
        std::thread::sleep(std::time::Duration::from_millis(60));
        assert_eq!(steps(), before, "nothing moves");
        for made in 1..=3 {
            assert_eq!(post(&host, "/live/step"), json!(true));
            wait("the step", || steps() == before + made);
        }
        std::thread::sleep(std::time::Duration::from_millis(60));
        assert_eq!(steps(), before + 3, "three steps and no more");
        let health = host.get("/health");
        assert_eq!((health.status, &health.json()["stuck_for_ms"]), (200, &json!(0)));
        // Who watches sees each of them, and the blocks after each.
        feed.until(|feed| feed.all("kv").last().is_some_and(|map| map["step"] == before + 2));
        feed.until(|feed| feed.all("stats").last().is_some_and(|stats| stats["paused"] == true));
        assert_eq!(feed.all("step").last().map(|step| &step["id"]), Some(&json!(before + 2)));
        assert_eq!(post(&host, "/live/resume"), json!(false));
        let (first, second) = (first.join().expect("an answer"), second.join().expect("an answer"));
        assert_eq!(first["choices"], alone, "the same answer, to the byte");
        for answer in [first, second] {
            let timings = &answer["timings"];
            let paused = timings["held_ms"].as_f64().expect("it says how long it was paused");
            let spent = timings["total_ms"].as_f64().expect("it has a total");
            let detail = &timings["detail"][0];
            assert!(paused > 100.0, "{timings}");
            assert!(detail["ttft"].get("paused_ms").is_none() && detail["gaps"].get("paused_ms").is_none(), "{detail}");
            // The clock stood: no time of the answer has the hold in it.
            let owners = |part: &str| -> f64 {
                let parts = detail[part].as_object().expect("owners").iter();
                parts
                    .filter(|(name, _)| name.ends_with("_ms") && *name != "total_ms")
                    .filter_map(|(_, ms)| ms.as_f64())
                    .sum()
            };
            assert!(owners("ttft") + owners("gaps") <= spent + 1.0, "{timings}");
        }
    });
    assert_eq!(post(&host, "/live/step"), json!(false), "nothing to step through");
    host.quiet();
}

#[test]
fn holding_the_engine_must_be_allowed() {
    let host = Host::start();
    for path in ["/live/pause", "/live/step", "/live/resume"] {
        let refused = host.post_bytes(path, b"");
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, &error["code"]), (403, &json!("pause_not_allowed")), "{path}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("--allow-pause")));
        assert_eq!(host.get(path).status, 405);
    }
    assert_eq!(host.get("/live/info").json()["pause_allowed"], false);
    drop(host);
    let host = pausable();
    assert_eq!(host.get("/live/info").json()["pause_allowed"], true);
    let refused = host.post_bytes("/live/pause", b"");
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (403, &json!("hold_token")),
        "allowed, but not for all"
    );
    let holds = |headers: &[(&str, &str)]| {
        host.send("POST", "/live/resume", &[headers, &[("connection", "close")]].concat(), b"").status
    };
    for (site, expected) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
        assert_eq!(holds(&[("x-hold-token", TOKEN), ("sec-fetch-site", site)]), expected, "{site}");
    }
    for wrong in ["", "x", &TOKEN[1..], &TOKEN.to_uppercase(), &format!("{TOKEN}0")] {
        for path in ["/live/pause", "/live/step", "/live/resume"] {
            let mut connection = host.connect();
            connection.request("POST", path, &[("x-hold-token", wrong), ("connection", "close")], b"");
            assert_eq!(connection.answer().status, 403, "{path} {wrong:?}");
        }
    }
    assert_eq!(holds(&[("x-hold-token", TOKEN), ("x-hold-token", TOKEN)]), 403);
    assert!(!host.engine.is_paused());
    for path in ["/live/info", "/metrics", "/", "/app.js"] {
        assert!(!host.get(path).text().contains(TOKEN), "{path} gives the token away");
    }
}

#[test]
fn an_engine_without_viewers_moves_again() {
    let mut options = local_server();
    options.hold_token = Some(TOKEN.into());
    options.pause_limit = std::time::Duration::from_millis(300);
    let host = Host::with(small_engine(), options);
    let mut feed = Feed::open(&host, "", &[]);
    assert_eq!(post(&host, "/live/pause"), json!(true));
    // Longer than the limit, but there is a viewer.
    feed.until(|feed| feed.all("stats").len() >= 4);
    assert!(host.engine.is_paused());
    drop(feed);
    wait("it to move", || !host.engine.is_paused());
    // There was no viewer at all.
    assert_eq!(post(&host, "/live/pause"), json!(true));
    wait("it to move", || !host.engine.is_paused());
    host.ask("/v1/completions", &json!({"prompt": PROMPT, "max_tokens": 3}));
}

#[test]
fn a_held_engine_drains_like_any_other() {
    let mut host = pausable();
    let body = json!({"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": true}).to_string();
    let mut connection = host.connect();
    assert_eq!(post(&host, "/live/pause"), json!(true));
    connection.request("POST", "/v1/completions", &[("content-type", "application/json")], body.as_bytes());
    host.step_into(2);
    host.stop.drain();
    let answer = connection.answer();
    assert_eq!((answer.status, &answer.json()["usage"]["completion_tokens"]), (200, &json!(300)));
    host.join();
}

#[test]
fn the_map_of_the_cache_shows_who_holds_what() {
    let host = pausable();
    let block_size = host.engine.model().block_size as u64;
    let total = host.engine.model().num_blocks;
    let mut feed = Feed::open(&host, "?kv=1", &[]);
    feed.until(|feed| !feed.all("kv").is_empty());
    let first = feed.all("kv")[0].clone();
    assert_eq!((&first["full"], first["blocks"].as_array().map(Vec::len)), (&json!(true), Some(total)));
    assert!(first["blocks"].as_array().is_some_and(|blocks| blocks.iter().all(|state| *state == 0)), "all free");
    let mut map: Vec<Value> = first["blocks"].as_array().expect("blocks").clone();
    std::thread::scope(|scope| {
        // Two answers share their prompt's blocks.
        let body =
            json!({"prompt": PROMPT.repeat(12), "max_tokens": 300, "n": 2, "temperature": 0, "ignore_eos": true});
        let host = &host;
        assert_eq!(post(host, "/live/pause"), json!(true));
        let answer = scope.spawn(move || host.ask("/v1/completions", &body));
        host.step_into(10);
        let newest = host.engine.stats().steps - 1;
        feed.until(|feed| feed.all("kv").last().is_some_and(|map| map["step"] == newest));
        for event in feed.all("kv").iter().skip(1) {
            assert_eq!(event["full"], false);
            for change in event["changed"].as_array().expect("changes") {
                let block = change[0].as_u64().expect("a block") as usize;
                assert_ne!(map[block], change[1], "only what changed");
                map[block] = change[1].clone();
            }
        }
        assert_eq!(post(host, "/live/resume"), json!(false));
        let answer = answer.join().expect("an answer");
        let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a count");
        let held = |holders: u64| map.iter().filter(|state| **state == json!([answer["id"], holders])).count() as u64;
        assert_eq!(held(2), prompt_tokens / block_size, "full blocks of the prompt are shared");
        assert!(held(1) >= 2, "each has its own after that");
        assert!(map.iter().all(|state| state.is_array() || *state == 0), "no other request is there");
    });
    // When it is over, its full blocks are kept for requests that begin with the same words.
    feed.until_ended(1);
    feed.until(|feed| {
        let maps = feed.all("kv");
        maps.iter().filter_map(|map| map["changed"].as_array()).flatten().any(|change| change[1] == 1)
    });
    for query in ["?kv=2", "?kv=", "?kv=true"] {
        assert_eq!(host.get(&format!("/live/feed{query}")).json()["error"]["param"], "kv", "{query}");
    }
}

#[test]
fn the_last_minutes_are_asked_what_would_have_been() {
    let host = Host::start();
    let nothing = host.get("/live/whatif");
    assert_eq!((nothing.status, &nothing.json()["error"]["param"]), (400, &json!("minutes")));
    std::thread::scope(|scope| {
        for turn in 0..6 {
            let host = &host;
            let prompt = PROMPT.repeat(1 + 6 * (turn % 3));
            let body = json!({"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true});
            scope.spawn(move || host.ask("/v1/completions", &body));
        }
    });
    host.quiet();
    let same = host.get("/live/whatif?minutes=1");
    assert_eq!(same.status, 200, "{}", same.text());
    let same = same.json();
    for course in ["recorded", "simulated", "whatif"] {
        assert_eq!((&same[course]["answers"], &same[course]["refused"]), (&json!(6), &json!(0)), "{course}");
        for time in ["p50", "p90", "p99"] {
            assert!(same[course]["ttft"][time].as_f64() > Some(0.0) && same[course]["tpot"][time].as_f64() > Some(0.0));
        }
    }
    assert_eq!(same["simulated"], same["whatif"], "nothing was asked");
    let steps = |answer: &Value, course: &str| answer["steps"][course].as_array().expect("steps").clone();
    assert_eq!(steps(&same, "simulated"), steps(&same, "whatif"));
    let lengths = |steps: &[Value]| -> Vec<u64> {
        let rows = steps.iter().flat_map(|step| step["prefill"].as_array().expect("rows"));
        rows.map(|row| row["len"].as_u64().expect("a length")).collect()
    };
    let small = host.get("/live/whatif?max_prefill_chunk=16&tpot_slo=off&ttft_slo=2s").json();
    let (was, is) = (lengths(&steps(&small, "simulated")), lengths(&steps(&small, "whatif")));
    assert!(was.iter().any(|&len| len > 16) && is.iter().all(|&len| len <= 16), "{was:?} {is:?}");
    assert_eq!(small["whatif"]["answers"], 6);
    for figure in ["ttft", "tpot", "longest_gap_ms", "preemptions", "answers"] {
        assert_eq!(small["recorded"][figure], same["recorded"][figure], "{figure}: the same past");
    }
    // There were no drafts.
    let off = host.get("/live/whatif?speculate=off").json();
    assert_eq!((&off["whatif"]["drafted"], &off["whatif"]["tokens_per_step"]), (&json!(0), &json!(1.0)), "{off}");
    // Goodput is by the targets of the question, and the first had none.
    assert!(same["recorded"]["goodput_per_second"].is_null(), "{same}");
    assert!(small["recorded"]["goodput_per_second"].as_f64() > Some(0.0), "{small}");
    let numbers = steps(&small, "whatif").iter().all(|step| {
        step["decode"]
            .as_array()
            .is_some_and(|rows| rows.iter().all(|row| row["r"].as_u64().is_some_and(|number| number < 6)))
    });
    assert!(numbers, "requests by arrival");
    for (query, param) in [
        ("minutes=0", json!("minutes")),
        ("minutes=61", json!("minutes")),
        ("minutes=x", json!("minutes")),
        ("max_prefill_chunk=0", json!("max_prefill_chunk")),
        ("kv_blocks=-1", json!("kv_blocks")),
        ("kv_blocks=99999999999", json!("kv_blocks")),
        ("ttft_slo=soon", json!("ttft_slo")),
        ("tpot_slo=0ms", json!("tpot_slo")),
        ("seats=3", json!("seats")),
        ("speculate=auto", json!("speculate")),
        ("max_num_batched_tokens=1", Value::Null),
    ] {
        let refused = host.get(&format!("/live/whatif?{query}"));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &param), "{query}");
    }
}

/// One definition (crates/figures): what the page shows, what the what-if says of the past and what a client computes
/// of its own answers are the same numbers.
#[test]
fn percentiles_are_the_same_through_every_door() {
    let host = Host::start();
    let mut ttfts: Vec<f64> = (0..7)
        .map(|turn| {
            let prompt = PROMPT.repeat(1 + 5 * (turn % 4));
            let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": true});
            host.ask("/v1/completions", &body)["timings"]["ttft_ms"].as_f64().expect("milliseconds")
        })
        .collect();
    host.quiet();
    ttfts.sort_by(f64::total_cmp);
    let wanted = |percent| figures::percentile(&ttfts, percent).expect("seven values");
    let mut feed = Feed::open(&host, "", &[]);
    feed.until(|feed| feed.all("stats").last().is_some_and(|stats| stats["decode_tokens"] == 14));
    let stats = feed.all("stats").last().copied().expect("stats").clone();
    let recorded = host.get("/live/whatif?minutes=60").json()["recorded"]["ttft"].clone();
    // Answers say microseconds.
    let same = |shown: &Value, percent: f64| (shown.as_f64().expect("a time") - wanted(percent)).abs() < 0.002;
    for (shown, percent) in [(&stats["ttft_p50_ms"], 50.0), (&stats["ttft_p99_ms"], 99.0)]
        .into_iter()
        .chain([("p50", 50.0), ("p90", 90.0), ("p99", 99.0)].map(|(name, percent)| (&recorded[name], percent)))
    {
        assert!(same(shown, percent), "{shown} is not {} of {ttfts:?}: {stats} {recorded}", wanted(percent));
    }
}
