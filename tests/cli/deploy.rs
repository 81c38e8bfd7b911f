//! What lies in deploy/ for Prometheus and Grafana, against the metrics that a server has.
//!
//! `cargo xtask test` also gives both to Prometheus itself (stage `prometheus`).

use std::collections::BTreeSet;

use serde_json::Value;
use tests::{Server, text};

fn board() -> Value {
    serde_json::from_str(&text("deploy/grafana/dashboards/twostroke.json").expect("the board exists")).expect("JSON")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Names of our metrics in a text. Those with a colon are recorded by rules.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.contains("twostroke_") && !word.ends_with(':')).collect()
}

#[test]
fn every_metric_of_the_board_and_the_rules_is_there() {
    let server = Server::start(&[]);
    // An answer is counted when it has been given: the second page has the first.
    let [(_, _), (status, page)] = [(); 2].map(|()| server.request("GET", "/metrics", &[], ""));
    assert_eq!(status, 200);
    let exposed: BTreeSet<&str> = page.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let rules = text("deploy/prometheus/rules.yml").expect("the rules exist");
    let recorded: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).map(str::trim).collect();
    let board = board();
    let panels = array(&board["panels"]).iter().flat_map(|panel| array(&panel["targets"]));
    let queries: Vec<&str> = panels.map(|target| target["expr"].as_str().expect("a query")).collect();
    assert!(queries.len() > 20 && recorded.len() >= 2, "{} queries, {recorded:?}", queries.len());
    // The rules' file has the job's name too, and patterns of names in its comments.
    let expressions = rules.lines().filter(|line| !line.trim().starts_with('#')).collect::<Vec<_>>().join("\n");
    let used = queries.iter().flat_map(|query| names(query)).chain(names(&expressions));
    let unknown: BTreeSet<&str> = used.filter(|name| !exposed.contains(name) && !recorded.contains(name)).collect();
    assert!(unknown.is_empty(), "no server has {unknown:?}");
}

#[test]
fn what_scales_workers_is_a_metric_of_a_worker() {
    let key = std::env::temp_dir().join(format!("twostroke-{}-deploy.key", std::process::id()));
    std::fs::write(&key, "sixteen bytes and more\n").expect("it can be written");
    let flags = ["--role", "prefill", "--handoff-listen", "127.0.0.1:0", "--cluster-key", key.to_str().expect("UTF-8")];
    let server = Server::start(&flags);
    std::fs::remove_file(&key).expect("it was there");
    let (status, page) = server.request("GET", "/metrics", &[], "");
    assert_eq!(status, 200);
    for file in ["deploy/kubernetes/hpa.yaml", "deploy/kubernetes/keda.yaml"] {
        let text = text(file).expect("it exists");
        let text = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        let named = names(&text);
        assert!(named.len() >= 2, "{file}: {named:?}");
        for name in named {
            let is_it = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
            assert!(page.lines().any(is_it), "{file}: a worker has no {name}");
        }
    }
    assert!(page.contains("twostroke_role{role=\"prefill\"} 1"), "{page}");
}

#[test]
fn the_board_shows_what_it_is_for() {
    let board = board();
    let all = board.to_string();
    for metric in [
        "twostroke_prefill_tokens_total",
        "twostroke_decode_tokens_total",
        "twostroke_time_to_first_token_seconds_bucket",
        "twostroke_inter_token_latency_seconds_bucket",
        "twostroke_target_ttft_seconds",
        "twostroke_target_tpot_seconds",
        "twostroke_requests_running",
        "twostroke_requests_waiting",
        "twostroke_kv_cache_usage_ratio",
        "twostroke_prefix_cache_hits_total",
        "twostroke_prefill_backlog_seconds",
        "twostroke_kv_seconds_to_full",
        "twostroke_ttft_seconds_total",
        "twostroke_itl_seconds_total",
    ] {
        assert!(all.contains(metric), "{metric} is on no panel");
    }
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in array(&board["panels"]) {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{} twice", panel["id"]);
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a number"));
        assert!(x + w <= 24, "{} is wider than the board", panel["title"]);
        let own = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        assert!(own.into_iter().all(|cell| cells.insert(cell)), "{} lies over another panel", panel["title"]);
        let targets: BTreeSet<&str> = array(&panel["targets"]).iter().filter_map(|one| one["refId"].as_str()).collect();
        assert_eq!(targets.len(), array(&panel["targets"]).len(), "{}: two queries of one name", panel["title"]);
    }
}
