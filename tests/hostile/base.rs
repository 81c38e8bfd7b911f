//! The good things that bad ones are made of: committed models, and what the program itself makes of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::{Server, root, run, signal, twostroke};

use crate::case::{Bound, Outcome, Scratch};
use crate::child::{self, End, Ran};
use crate::http;
use testing::Dice;

/// What every load is asked.
pub(crate) const PROMPT: &str = "Once upon a time there was a fox";

/// Made once, before the first case.
pub(crate) struct Base {
    /// `models/lantern-draft`, file by file: the model that changes are made to.
    pub(crate) model: BTreeMap<&'static str, Vec<u8>>,
    /// The same as a GGUF file, with its tokenizer and template.
    pub(crate) gguf: Vec<u8>,
    /// What it answers to [`PROMPT`], greedy, four tokens.
    pub(crate) answer: String,
    /// A run of a server, recorded.
    pub(crate) recording: String,
    /// The small results that a start of `serve` keeps.
    pub(crate) kept: BTreeMap<String, Vec<u8>>,
    /// A model whose weights are worth a packed image: random ones, with the tokenizer of the other.
    pub(crate) large: PathBuf,
    /// The cache that a start of `serve` with it leaves, and what that server answers to [`Base::certain`].
    pub(crate) cache: PathBuf,
    pub(crate) certain: String,
}

const FILES: [&str; 5] =
    ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

impl Base {
    pub(crate) fn make(scratch: &Scratch) -> Base {
        let read = |name| (name, fs::read(root().join("models/lantern-draft").join(name)).expect("it is committed"));
        let model = BTreeMap::from(FILES.map(read));
        let (large, cache) = (scratch.path("large"), scratch.path("cache"));
        let (gguf, answer, recording, certain) = (Vec::new(), String::new(), String::new(), String::new());
        let mut base = Base { model, gguf, answer, recording, kept: BTreeMap::new(), large, cache, certain };
        let directory = base.with(scratch, &[]);
        let gguf = scratch.path("model.gguf");
        let _ = fs::remove_file(&gguf);
        let quantize = ["quantize", "--weights", "int8", "--format", "gguf", "-m", text(&directory), "-o", text(&gguf)];
        done(&mut twostroke(&quantize));
        base.gguf = fs::read(&gguf).expect("it was written");
        base.answer = done(&mut load(&directory));
        base.recording = recorded(scratch);
        drop(Served::start(&directory, scratch, &base.cache, PATIENCE).expect("a good model is served"));
        for entry in fs::read_dir(base.cache.join("twostroke/packed")).expect("there is a cache").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            base.kept.insert(name, fs::read(entry.path()).expect("a file"));
        }
        base.write_large().expect("room for a model");
        let served = Served::start(&base.large, scratch, &base.cache, PATIENCE).expect("a good model is served");
        base.certain = served.certain().expect("a good model answers");
        let end = Instant::now() + PATIENCE;
        while image(&base.cache).is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(image(&base.cache).is_some(), "no packed image was kept");
        base
    }

    /// The model in a directory of the case's own, with some files changed; `None`: without it.
    pub(crate) fn with(&self, scratch: &Scratch, changes: &[(&str, Option<&[u8]>)]) -> PathBuf {
        let directory = scratch.path("model");
        fs::create_dir_all(&directory).expect("it can be written");
        for (name, good) in &self.model {
            if !changes.iter().any(|(changed, _)| changed == name) {
                fs::write(directory.join(name), good).expect("it can be written");
            }
        }
        for (name, bytes) in changes {
            if let Some(bytes) = bytes {
                fs::write(directory.join(name), bytes).expect("it can be written");
            }
        }
        directory
    }

    /// Nine layers of 512: 75 MB in bf16.
    fn write_large(&self) -> io::Result<()> {
        const HIDDEN: usize = 512;
        const INNER: usize = 2048;
        fs::create_dir_all(&self.large)?;
        for name in FILES.into_iter().filter(|name| *name != "model.safetensors") {
            fs::write(self.large.join(name), &self.model[name])?;
        }
        let mut config = self.json("config.json");
        (config["hidden_size"], config["intermediate_size"]) = (json!(HIDDEN), json!(INNER));
        (config["num_hidden_layers"], config["num_attention_heads"]) = (json!(9), json!(8));
        (config["num_key_value_heads"], config["head_dim"]) = (json!(2), json!(64));
        fs::write(self.large.join("config.json"), config.to_string())?;
        let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![2048, HIDDEN])];
        for layer in 0..9 {
            for (name, shape) in [
                ("input_layernorm", vec![HIDDEN]),
                ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
                ("self_attn.k_proj", vec![128, HIDDEN]),
                ("self_attn.v_proj", vec![128, HIDDEN]),
                ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
                ("post_attention_layernorm", vec![HIDDEN]),
                ("mlp.gate_proj", vec![INNER, HIDDEN]),
                ("mlp.up_proj", vec![INNER, HIDDEN]),
                ("mlp.down_proj", vec![HIDDEN, INNER]),
            ] {
                tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
            }
        }
        tensors.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (name, shape) in &tensors {
            let begin = end;
            end += 2 * shape.iter().product::<usize>();
            header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] }));
        }
        let header = Value::Object(header).to_string();
        let mut file = BufWriter::new(File::create(self.large.join("model.safetensors"))?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let mut dice = Dice::new(7);
        for (_, shape) in &tensors {
            for _ in 0..shape.iter().product::<usize>() {
                // Norms are one, weights between a 32nd and an eighth, of either sign.
                let bits = if shape.len() == 1 { 0x3F80 } else { (0x3D00 + dice.roll(256)) | (dice.roll(2) << 15) };
                file.write_all(&(bits as u16).to_le_bytes())?;
            }
        }
        file.flush()
    }

    /// A JSON file of the model.
    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.model[name]).expect("the committed model is good")
    }
}

/// Loads a model and writes four tokens, greedily: the cheapest verb that reads everything but the template.
pub(crate) fn load(model: &Path) -> Command {
    load_with(model, PROMPT)
}

/// The same with another prompt.
pub(crate) fn load_with(model: &Path, prompt: &str) -> Command {
    twostroke(&[&["run", "--no-packed-cache", "-m", text(model)][..], &ANSWER, &[prompt]].concat())
}

/// What a run needs to be short, quiet and the same each time.
pub(crate) const ANSWER: [&str; 8] = ["--raw", "-q", "-n", "4", "--temperature", "0", "-t", "1"];

/// The same with the model's template.
pub(crate) fn converse(model: &Path, prompt: &str) -> Command {
    twostroke(&[
        "run",
        "--no-packed-cache",
        "-m",
        text(model),
        "-q",
        "-n",
        "1",
        "--temperature",
        "0",
        "-t",
        "1",
        prompt,
    ])
}

/// Loads by way of the packed image.
pub(crate) fn keeping(model: &Path, weights: &str) -> Command {
    twostroke(&[&["run", "-m", text(model), "--weights", weights][..], &ANSWER, &[PROMPT]].concat())
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("the build directory is text")
}

fn done(command: &mut Command) -> String {
    let ran = run(command);
    assert_eq!(ran.code, Some(0), "a good file is not taken: {ran:?}");
    ran.stdout
}

/// The image in a cache, once it is whole.
pub(crate) fn image(cache: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(cache.join("twostroke/packed")).ok()?.flatten().map(|entry| entry.path());
    entries.into_iter().find(|path| {
        path.extension().is_none_or(|extension| extension != "tmp") && path.metadata().is_ok_and(|m| m.len() > 1 << 20)
    })
}

/// A server with a cache directory of a case's own, under a helper that measures it. Killed when dropped.
pub(crate) struct Served {
    child: Child,
    port: u16,
    measured: PathBuf,
}

impl Served {
    /// Waits until it listens, at most for `patience`: a start that hangs never prints its line.
    pub(crate) fn start(model: &Path, scratch: &Scratch, cache: &Path, patience: Duration) -> Result<Served, String> {
        let room = ["--kv-cache-memory-bytes", "24MiB", "-t", "1"];
        let mut command = twostroke(&[&["serve", "--port", "0", "--json", "-m", text(model)][..], &room].concat());
        command.env("XDG_CACHE_HOME", cache);
        let measured = scratch.path(".measured");
        let mut helper = child::wrapped(&command, &measured, &[]);
        helper.stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null()).process_group(0);
        let mut child = helper.spawn().expect("this program can be run again");
        let stdout = child.stdout.take().expect("piped");
        let (sender, receiver) = mpsc::channel();
        let mut served = Served { child, port: 0, measured };
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line); // the receiver may be gone
        });
        match receiver.recv_timeout(patience) {
            Err(_) => Err(format!("it does not listen after {} s", patience.as_secs())),
            Ok(line) => {
                let start: Value = serde_json::from_str(&line).unwrap_or_default();
                let port = start["port"].as_u64().ok_or_else(|| format!("it did not start: {line:?}"))?;
                served.port = port as u16;
                Ok(served)
            }
        }
    }

    /// Largest resident memory so far, MiB.
    pub(crate) fn peak_mib(&self) -> u64 {
        let pid = fs::read_to_string(&self.measured).ok().and_then(|text| text.lines().next()?.parse().ok());
        pid.and_then(|pid| child::status_kib(pid, "VmHWM")).unwrap_or(0) >> 10
    }

    /// An answer with the numbers behind it: where one weight is another, it is another.
    pub(crate) fn certain(&self) -> Result<String, String> {
        let body = json!({ "prompt": PROMPT.repeat(4), "max_tokens": 8, "temperature": 0, "ignore_eos": true,
            "logprobs": 20, "prompt_logprobs": 5 });
        let answer = http::post(self.port, None, "/v1/completions", &body.to_string(), PATIENCE);
        let answer = answer.map_err(|error| error.to_string())?;
        let value: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        match answer.status {
            200 if value["choices"].is_array() => Ok(value["choices"].to_string()),
            status => Err(format!("{status} {}", child::first(&answer.body, 160))),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// A server by a command that has `--json` and everything else.
pub(crate) fn start(command: &mut Command) -> Server {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    Server::adopt(child, &line)
}

fn recorded(scratch: &Scratch) -> String {
    let path = scratch.path("recording");
    let _ = fs::remove_file(&path);
    let flags = ["--record", text(&path), "--max-num-batched-tokens", "64", "--max-model-len", "512"];
    let mut server = Server::start(&[&flags[..], &["--kv-cache-memory-bytes", "4MiB"]].concat());
    for number in 0..4 {
        let body = json!({ "prompt": PROMPT.repeat(number + 1), "max_tokens": 6, "temperature": 0 }).to_string();
        assert_eq!(server.request("POST", "/v1/completions", &[], &body).0, 200);
    }
    signal("TERM", server.pid());
    assert_eq!(server.wait(), Some(0));
    fs::read_to_string(path).expect("it was recorded")
}

/// What a file must come to.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// One line that has one of these words.
    Refused(Vec<&'static str>),
    /// One line that has one of these words, or an answer, whatever it says: the file is its own truth.
    RefusedOr(Vec<&'static str>),
    /// This answer.
    Answers(String),
    /// This answer, or one line that has one of these words.
    AnswersOr(String, Vec<&'static str>),
    /// An answer, whatever it says.
    Works,
}

impl Verdict {
    pub(crate) fn judge(&self, ran: &Ran, bound: &Bound) -> Outcome {
        Outcome::of(ran.sane(bound).and_then(|()| self.of(ran)), ran.spent)
    }

    fn of(&self, ran: &Ran) -> Result<(), String> {
        let answered = ran.end == End::Exit(0);
        match self {
            Verdict::Refused(words) => ran.refused(words),
            Verdict::RefusedOr(words) if !answered => ran.refused(words),
            Verdict::AnswersOr(_, words) if !answered => ran.refused(words),
            Verdict::RefusedOr(_) => Ok(()),
            Verdict::Works if answered => Ok(()),
            Verdict::Answers(wanted) | Verdict::AnswersOr(wanted, _) if answered && *wanted == ran.stdout => Ok(()),
            Verdict::Answers(_) | Verdict::AnswersOr(..) if answered => {
                Err(format!("another answer: {:?}", child::first(&ran.stdout, 60)))
            }
            _ => Err(format!("no answer: {:?}, {}", ran.end, child::first(&ran.stderr, 200))),
        }
    }
}

/// How long the suite waits for what ought to be immediate.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
