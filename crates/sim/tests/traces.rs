//! Trace files in the formats of Mooncake and Azure: their contents, and the errors of invalid ones.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use protocol::Nanos;
use sim::trace::{read, read_all};

const MOONCAKE: &str = r#"{"timestamp": 5000, "input_length": 1100, "output_length": 20, "hash_ids": [7, 8, 9]}
{"timestamp": 5000, "input_length": 600, "output_length": 0, "hash_ids": [7, 8]}

{"timestamp": 6500.5, "input_length": 30, "output_length": 2}
"#;
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 23:59:59.9000000,374,44\r
2023-11-17 00:00:01.4000000,396,109\r
";

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("twostroke-trace-{}-{name}", std::process::id()));
    fs::write(&path, bytes).expect("the temporary directory can be written");
    path
}

#[test]
fn a_mooncake_line_becomes_a_request_with_named_pieces() {
    let load = read(&file("good.jsonl", MOONCAKE.as_bytes()), 0).unwrap();
    let seen: Vec<_> = load.arrivals.iter().map(|a| (a.at, a.input_tokens(), a.output_tokens)).collect();
    // An answer of length 0 is one token: its prompt was computed.
    assert_eq!(seen, [(Nanos(0), 1100, 20), (Nanos(0), 600, 1), (Nanos(1_500_500_000), 30, 2)]);
    let [first, second, third] = &load.arrivals[..] else { panic!("three") };
    let lens: Vec<usize> = first.prompt.iter().map(|piece| piece.len).collect();
    assert_eq!(lens, [512, 512, 76]);
    assert_eq!(first.prompt[0], second.prompt[0], "equal ids are equal tokens");
    assert_eq!(first.prompt[1].name, second.prompt[1].name, "a shorter piece is the beginning of the longer");
    assert!(third.prompt[0].name != first.prompt[0].name, "without ids nothing is shared");
}

#[test]
fn an_azure_line_becomes_a_request_of_its_own_across_midnight() {
    let load = read(&file("good.csv", AZURE.as_bytes()), 0).unwrap();
    let seen: Vec<_> = load.arrivals.iter().map(|a| (a.at, a.input_tokens(), a.output_tokens)).collect();
    assert_eq!(seen, [(Nanos(0), 374, 44), (Nanos(1_500_000_000), 396, 109)]);
}

#[test]
fn a_compressed_trace_is_the_same_trace() {
    let mut gz = GzEncoder::new(Vec::new(), Compression::default());
    gz.write_all(MOONCAKE.as_bytes()).unwrap();
    let compressed = read(&file("same.gz", &gz.finish().unwrap()), 0).unwrap();
    assert_eq!(compressed.arrivals, read(&file("same.jsonl", MOONCAKE.as_bytes()), 0).unwrap().arrivals);
}

#[test]
fn files_of_one_load_share_no_prefix_and_begin_together() {
    let load = read_all(&[file("one.jsonl", MOONCAKE.as_bytes()), file("two.jsonl", MOONCAKE.as_bytes())]).unwrap();
    assert_eq!(load.arrivals.len(), 6);
    assert!(load.arrivals.is_sorted_by_key(|arrival| arrival.at));
    let firsts: Vec<u64> =
        load.arrivals.iter().filter(|a| a.input_tokens() == 1100).map(|a| a.prompt[0].name).collect();
    assert!(firsts.len() == 2 && firsts[0] != firsts[1], "an id means something in its own file only");
}

#[test]
fn a_wrong_file_is_named_with_its_line_and_its_fault() {
    let line = |more: &str| format!("{{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1{more}}}\n");
    let cases: &[(&str, String, &[&str])] = &[
        ("empty", String::new(), &["no requests", "input_length", "TIMESTAMP"]),
        ("header", "TIMESTAMP,ContextTokens,GeneratedTokens\n".into(), &["no requests"]),
        ("words", "hello\n".into(), &["line 1"]),
        ("second", line("") + "{}\n", &["line 2", "timestamp"]),
        ("negative", line("").replace(": 5", ": -5"), &["line 1"]),
        ("nothing", line("").replace(": 5", ": 0"), &["line 1", "0 tokens"]),
        ("huge", line("").replace(": 5", ": 99999999999"), &["line 1", "too many"]),
        ("clock", line("").replace(": 0", ": 1e300"), &["line 1", "milliseconds"]),
        ("ids", line(", \"hash_ids\": [1, 2]"), &["line 1", "2 hash_ids", "512"]),
        ("earlier", line("").replace("p\": 0", "p\": 9") + &line(""), &["line 2", "earlier"]),
        ("fields", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n".into(), &["line 2", "3"]),
        ("time", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n".into(), &["line 2", "yesterday"]),
        // Found by fuzzing: its nanoseconds wrapped around.
        ("far", "TIMESTAMP,ContextTokens,GeneratedTokens\n2869-11-16 18:15:46,1,1\n".into(), &["line 2", "2869"]),
        ("count", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,x,1\n".into(), &["line 2", "\"x\""]),
    ];
    for (name, text, wanted) in cases {
        let path = file(name, text.as_bytes());
        let error = read(&path, 0).expect_err(name).to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert!(wanted.iter().all(|word| error.contains(word)), "{name}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let broken = read(&file("broken.gz", &[0x1f, 0x8b, 8, 0, 1, 2, 3]), 0).expect_err("not gzip").to_string();
    assert!(broken.contains("broken.gz"), "{broken}");
    assert!(read(&std::env::temp_dir().join("twostroke-no-such-trace"), 0).is_err());
}
