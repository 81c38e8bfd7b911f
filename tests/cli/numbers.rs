//! Every flag that takes a number, with absurd numbers: an answer within seconds, in the memory of an
//! ordinary run, and never a panic or a signal. The flags are those of the reference, so a new one is tried too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tests::{text, twostroke};

const VALUES: [&str; 9] = [
    "0",
    "18446744073709551615",
    "99999999999",
    "99999999999999999999999",
    "-1",
    "-9223372036854775808",
    "nan",
    "1e308",
    "-inf",
];

/// What a flag's value looks like, with the number in its place; `None` for what is no number.
fn shaped(value_name: &str, number: &str) -> Option<String> {
    Some(match value_name {
        "N" | "N,.." | "X" | "X,.." | "SIZE" | "P,.." | "SECONDS" | "PORT" | "B" => number.to_string(),
        "TIME" | "TIME\\|auto\\|off" | "TIME\\|off" => format!("{number}s"),
        "X[,draft=SHAPE]" => format!("{number},draft=0.5b"),
        "X/min" => format!("{number}/min"),
        "DIR:SIZE" => format!("{}:{number}", std::env::temp_dir().display()),
        "METRIC:MS" => format!("ttft:{number}"),
        _ => return None,
    })
}

/// Flags of each verb with the names of their values, from the reference.
fn numeric_flags() -> BTreeMap<String, Vec<(String, String)>> {
    let reference = text("docs/reference/flags.md").expect("the reference exists");
    let mut flags: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut verb = String::new();
    for line in reference.lines() {
        if let Some(name) = line.strip_prefix("## twostroke ") {
            verb = name.to_string();
        }
        let Some(cell) = line.strip_prefix("| `-").and_then(|rest| rest.split(" | ").next()) else { continue };
        let parts: Vec<&str> = cell.split('`').map(str::trim).filter(|part| !part.is_empty() && *part != ",").collect();
        let long = parts.iter().find(|part| part.starts_with("--") || part.starts_with('-') && part.len() > 2);
        let value = parts.last().filter(|part| !part.starts_with('-'));
        let (Some(long), Some(value)) = (long, value) else { continue };
        if shaped(value, "1").is_some() {
            let long = format!("--{}", long.trim_start_matches('-'));
            flags.entry(verb.clone()).or_default().push((long, value.to_string()));
        }
    }
    flags
}

/// The shortest run of a verb, and what some of its flags need beside them.
struct Runs {
    place: PathBuf,
    recording: PathBuf,
}

impl Runs {
    fn base(&self, verb: &str, flag: &str) -> Vec<String> {
        let at = |name: &str| self.place.join(name).display().to_string();
        let base: Vec<String> = match verb {
            "run" => ["Once", "--raw", "-q", "--max-tokens", "2"].map(String::from).to_vec(),
            "serve" => ["--port", "0", "--json"].map(String::from).to_vec(),
            // No server is asked: the file is none.
            "batch" => ["-i", "/nowhere/in", "-o", "/nowhere/out"].map(String::from).to_vec(),
            "bench" if flag == "--lora-rank" => ["low-rank", "--repetitions", "1"].map(String::from).to_vec(),
            "bench" => ["-p", "8", "-n", "2", "--repetitions", "1"].map(String::from).to_vec(),
            "lab" => {
                let out = at("lab");
                ["--prompts", "8", "--positions", "0", "--batches", "1", "--repetitions", "1", "-o", &out]
                    .map(String::from)
                    .to_vec()
            }
            // Nothing listens there.
            "bench-serve" => {
                let dataset = match flag.trim_start_matches("--") {
                    flag if flag.starts_with("prefix-repetition-") => "prefix_repetition",
                    flag if flag.starts_with("sessions-") => "sessions",
                    _ => "random",
                };
                ["--port", "1", "--model", "lantern", "--num-prompts", "1", "--dataset-name", dataset]
                    .map(String::from)
                    .to_vec()
            }
            "quality" => ["--text", &at("text")].map(String::from).to_vec(),
            "quantize" => ["--weights", "int8", "-o", &at("quantized")].map(String::from).to_vec(),
            "plan" => match flag {
                "--flops" | "--bandwidth" | "--memory" => {
                    ["--flops", "1T", "--bandwidth", "1T"].map(String::from).to_vec()
                }
                "--threads" => ["--machine", "here"].map(String::from).to_vec(),
                "--users" | "--rate" | "--ttft-slo" | "--tpot-slo" => {
                    ["--users", "5", "--rate", "1/min"].map(String::from).to_vec()
                }
                _ => Vec::new(),
            },
            "sim" => {
                let with: &[&str] = match flag {
                    "--link" => &["--instances", "2", "--prefill", "1"],
                    "--burst-cv" => &["--workload", "bursty"],
                    "--prefixes" | "--prefix-tokens" => &["--workload", "shared-prefix"],
                    "--turns" | "--pause" => &["--workload", "sessions"],
                    _ => &[],
                };
                [&["--requests", "20", "--rate", "5"], with].concat().into_iter().map(String::from).collect()
            }
            "replay" | "whatif" => vec![self.recording.display().to_string()],
            "top" => ["--once", "--url", "http://127.0.0.1:1"].map(String::from).to_vec(),
            _ => Vec::new(),
        };
        // A flag may be given once: the tried one replaces the base's.
        let short = |name: &str| match (verb, name) {
            ("bench", "--n-prompt") => "-p".to_string(),
            ("bench", "--n-gen") => "-n".to_string(),
            _ => name.to_string(),
        };
        match base.iter().position(|argument| *argument == flag || *argument == short(flag)) {
            Some(index) => [&base[..index], &base[index + 2..]].concat(),
            None => base,
        }
    }
}

/// How a command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    took: Duration,
    peak_mib: u64,
    stderr: String,
}

/// Runs a command to its end; one that has said that it serves is ended.
fn watch(command: &mut Command, most: Duration) -> Ended {
    let errors = tempfile("stderr");
    let output = tempfile("stdout");
    let begun = Instant::now();
    let stderr = fs::File::create(&errors).unwrap();
    let mut child =
        command.stdout(fs::File::create(&output).unwrap()).stderr(stderr).stdin(Stdio::null()).spawn().unwrap();
    let mut peak_mib = 0;
    let code = loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak_mib = peak_mib.max(peak.unwrap_or(0) / 1024);
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        let serves = fs::read_to_string(&output).is_ok_and(|text| text.contains("\"port\":"));
        if serves || begun.elapsed() > most {
            child.kill().unwrap();
            child.wait().unwrap();
            break serves.then_some(0);
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    let stderr = fs::read_to_string(&errors).unwrap_or_default();
    let (_, _) = (fs::remove_file(errors), fs::remove_file(output));
    Ended { code, took: begun.elapsed(), peak_mib, stderr }
}

fn tempfile(name: &str) -> PathBuf {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::env::temp_dir().join(format!("twostroke-numbers-{}-{number}-{name}", std::process::id()))
}

#[test]
#[ignore = "long: every numeric flag with every hostile value"]
fn no_number_is_too_much() {
    let place = tempfile("place");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("text"), "Once upon a time there was a fox who lived beside a quiet river. ".repeat(8))
        .unwrap();
    let runs = Runs { recording: crate::replay::recorded("numbers"), place: place.clone() };
    let all: Vec<(String, String, String)> = numeric_flags()
        .into_iter()
        .flat_map(|(verb, flags)| flags.into_iter().map(move |(flag, value)| (verb.clone(), flag, value)))
        .collect();
    assert!(all.len() > 100, "{} flags in the reference", all.len());
    let verbs: BTreeMap<String, u64> = all.iter().map(|(verb, ..)| (verb.clone(), 0)).collect();
    // What an ordinary run takes: measuring limits reads more memory than caches hold.
    let usual: BTreeMap<String, u64> = verbs
        .into_keys()
        .map(|verb| {
            let ended = watch(
                twostroke(&[vec![verb.clone()], runs.base(&verb, "")].concat()).current_dir(&place),
                Duration::from_secs(120),
            );
            let _ = fs::remove_dir_all(place.join("quantized"));
            (verb, ended.peak_mib)
        })
        .collect();
    let queue = Mutex::new(all.iter());
    let complaints = Mutex::new(Vec::new());
    let tried = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((verb, flag, value_name)) = queue.lock().unwrap().next() else { break };
                    for number in VALUES {
                        let value = shaped(value_name, number).expect("it was a number's flag");
                        let mut arguments = vec![verb.clone()];
                        arguments.extend(runs.base(verb, flag));
                        arguments.push(format!("{flag}={value}"));
                        let ended = watch(twostroke(&arguments).current_dir(&place), Duration::from_secs(300));
                        tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        let _ = fs::remove_dir_all(place.join("quantized"));
                        let is_clean = matches!(ended.code, Some(0..=2)) && !ended.stderr.contains("this is a bug");
                        let most = usual[verb] + 300;
                        if !is_clean || ended.took > Duration::from_secs(250) || ended.peak_mib > most {
                            complaints.lock().unwrap().push(format!("{arguments:?}: {ended:?}"));
                        }
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "of {}:\n{}", tried.into_inner(), complaints.join("\n"));
    let _ = fs::remove_dir_all(&place);
    let _ = fs::remove_file(Path::new(&runs.recording));
}
