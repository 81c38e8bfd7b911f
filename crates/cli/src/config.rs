//! `serve --config FILE`: flags in a file, put among the arguments before they are read.
//!
//! ```text
//! serve --config site.yaml --port 9000          max-num-seqs: 32
//!   => serve --max-num-seqs=32                   port: 8000            (on the command line already: left out)
//!            --config site.yaml --port 9000
//! ```
//!
//! So a file can say whatever a command line can, no more, and every value is checked in the same place. The options of
//! an engine in another program become flags in the same way.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, Parser};
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::Value;

use crate::failure::{self, Failure};
use crate::flags::{self, Cli};

const FLAG: &str = "--config";
/// Bytes of the file.
const MAX_BYTES: u64 = 1 << 20;

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Said {
    file: OsString,
    flags: Vec<String>,
}

impl Said {
    fn wrong(&self, problem: &str) -> Failure {
        Failure::usage(format!("{FLAG}: {}: {problem}", self.file.to_string_lossy()))
    }

    /// Names the file in what clap says about all arguments, if it says so of the file's flags alone.
    pub(crate) fn blamed(&self, failure: Failure) -> Failure {
        let alone = ["twostroke", "serve"].into_iter().chain(self.flags.iter().map(String::as_str));
        let mut alone = alone.map(OsString::from).collect();
        flags::take_hinted(&mut alone);
        let error = Cli::try_parse_from(&alone).err().and_then(|error| failure::from_clap(&error, &alone).err());
        match (failure, error) {
            (Failure::Usage(problem), Some(Failure::Usage(same))) if same == problem => self.wrong(&problem),
            (failure, _) => failure,
        }
    }
}

/// The arguments of this process with those of its file, and these alone.
pub(crate) fn arguments(given: impl Iterator<Item = OsString>) -> Result<(Vec<OsString>, Said), Failure> {
    let mut given: Vec<OsString> = given.collect();
    let serves = given.get(1).is_some_and(|verb| verb == "serve");
    let Some(file) = file(&given).filter(|_| serves) else { return Ok((given, Said::default())) };
    let mut said = Said { file, flags: Vec::new() };
    let text = files::read_text(Path::new(&said.file), MAX_BYTES).map_err(|error| said.wrong(&error.to_string()))?;
    said.flags = flags_of(&text, &given).map_err(|problem| said.wrong(&problem))?;
    given.splice(2..2, said.flags.iter().map(OsString::from));
    Ok((given, said))
}

/// What `--config` names, the last time.
fn file(arguments: &[OsString]) -> Option<OsString> {
    let before_end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let arguments = &arguments[..before_end];
    (0..arguments.len()).rev().find_map(|at| match arguments[at].to_str()? {
        FLAG => arguments.get(at + 1).cloned(),
        argument => argument.strip_prefix("--config=").map(OsString::from),
    })
}

/// The flags of a file that the arguments do not have themselves.
fn flags_of(text: &str, arguments: &[OsString]) -> Result<Vec<String>, String> {
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    let mapping = match &documents[..] {
        [] => return Ok(Vec::new()),
        [Yaml::Mapping(mapping)] => mapping,
        _ => return Err("it must be one mapping of flags to values".to_owned()),
    };
    let mut flags = Vec::new();
    for (key, value) in mapping {
        let name = key.as_str().ok_or("a key is the name of a flag")?;
        let flag = format!("--{}", name.trim_start_matches("--").replace('_', "-"));
        if flag == FLAG {
            return Err("a file names no other file".to_owned());
        }
        if ["--help", "--version"].contains(&flag.as_str()) {
            return Err(format!("{flag} is for a command line"));
        }
        if !arguments.iter().any(|argument| is_flag(argument, &flag)) {
            flags.extend(written(&flag, json(value).map_err(|problem| format!("{name}: {problem}"))?));
        }
    }
    Ok(flags)
}

fn is_flag(argument: &OsString, flag: &str) -> bool {
    let text = argument.to_string_lossy();
    text.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// One flag of `serve`: `true` gives it, `false` its opposite (`--no-...`) where there is one, nothing leaves it out, a
/// list gives it for each.
pub(crate) fn written(flag: &str, value: Value) -> Vec<String> {
    // As the value of a flag: a text as it is, the rest as JSON.
    let with = |value: &Value| format!("{flag}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    match value {
        Value::Bool(true) => vec![flag.to_owned()],
        Value::Bool(false) => opposite(flag).into_iter().collect(),
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().map(with).collect(),
        value => vec![with(&value)],
    }
}

/// `--no-enable-prefix-caching` of `--enable-prefix-caching`.
fn opposite(flag: &str) -> Option<String> {
    let name = format!("no-{}", flag.strip_prefix("--")?);
    let command = Cli::command();
    let serve = command.find_subcommand("serve")?;
    let exists = serve.get_arguments().any(|argument| argument.get_long() == Some(&name));
    exists.then(|| format!("--{name}"))
}

fn json(value: &Yaml<'_>) -> Result<Value, String> {
    Ok(match value {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(value)) => (*value).into(),
        Yaml::Value(Scalar::Integer(value)) => (*value).into(),
        Yaml::Value(Scalar::FloatingPoint(value)) => value.into_inner().into(),
        Yaml::Value(Scalar::String(text)) => text.as_ref().into(),
        Yaml::Sequence(items) => items.iter().map(json).collect::<Result<_, _>>()?,
        Yaml::Mapping(mapping) => {
            let entry = |(key, value): (&Yaml<'_>, &Yaml<'_>)| {
                let key = key.as_str().ok_or("a key inside a value must be a text")?;
                Ok::<_, String>((key.to_owned(), json(value)?))
            };
            Value::Object(mapping.iter().map(entry).collect::<Result<_, _>>()?)
        }
        _ => return Err("neither a text, a number, true, false, a list nor a mapping of these".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str, arguments: &[&str]) -> Result<Vec<String>, String> {
        flags_of(text, &arguments.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_file_says_what_a_command_line_can() {
        for (text, arguments, expected) in [
            ("", vec![], vec![]),
            ("max-num-seqs: 32", vec![], vec!["--max-num-seqs=32"]),
            ("max_num_seqs: 32\nttft-slo: 500ms", vec![], vec!["--max-num-seqs=32", "--ttft-slo=500ms"]),
            ("port: 8000\nhost: \"::1\"", vec!["--port", "9000"], vec!["--host=::1"]),
            ("port: 8000", vec!["--port=9000"], vec![]),
            ("spot-check: 0.25", vec![], vec!["--spot-check=0.25"]),
            ("no-ui: true\nrefuse-late: false\nseed: null", vec![], vec!["--no-ui"]),
            ("enable-prefix-caching: false", vec![], vec!["--no-enable-prefix-caching"]),
            ("enable-prefix-caching: true\nno-ui: false", vec![], vec!["--enable-prefix-caching"]),
            ("served-model-name: [a, b]", vec![], vec!["--served-model-name=a", "--served-model-name=b"]),
            ("speculative-config: {method: ngram}", vec![], vec![r#"--speculative-config={"method":"ngram"}"#]),
        ] {
            assert_eq!(expanded(text, &arguments).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_flags_is_said() {
        for (text, part) in [
            ("- a\n- b", "one mapping"),
            ("7", "one mapping"),
            ("a: 1\n---\nb: 2", "one mapping"),
            ("config: other.yaml", "no other file"),
            ("1: 2", "name of a flag"),
            ("help: true", "--help is for a command line"),
            ("version: true", "--version is for a command line"),
            ("a: [", "line"),
            ("port: 1\nport: 2", "duplicate"),
        ] {
            let problem = expanded(text, &[]).unwrap_err();
            assert!(problem.to_lowercase().contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn the_file_is_named_like_any_flag() {
        let named = |arguments: &[&str]| file(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(named(&["t", "serve", "--config", "a"]), Some("a".into()));
        assert_eq!(named(&["t", "serve", "--config=a", "--config", "b"]), Some("b".into()));
        assert_eq!(named(&["t", "serve", "--", "--config", "b"]), None);
        assert_eq!(named(&["t", "serve", "--config"]), None);
    }
}
