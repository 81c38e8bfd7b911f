//! What is read from the environment and from the operating system's sources of chance, in one place.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use launch::Variables;
use server::OtelOptions;
use text::chat_template::Renderer;
use tracing_subscriber::EnvFilter;

use crate::console::note;
use crate::log::Lines;

/// What the variables say about models.
pub(crate) fn variables() -> Variables {
    Variables::read(text, std::env::home_dir())
}

/// Where what the user did is kept, as the XDG base directories say; `None` where there is not even a home directory.
pub(crate) fn state_file(name: &str) -> Option<PathBuf> {
    // A relative path counts as none.
    let set = text("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set.or_else(|| Some(std::env::home_dir()?.join(".local/state")))?;
    Some(state.join("twostroke").join(name))
}

/// A path as it is typed where no shell replaces `~/`.
pub(crate) fn at_home(path: &str) -> PathBuf {
    let below = path.strip_prefix("~/").and_then(|below| Some(std::env::home_dir()?.join(below)));
    below.unwrap_or_else(|| path.into())
}

/// Whether the terminal does more than show lines: it has a name, and none of those that cannot.
pub(crate) fn terminal_has_clipboard() -> bool {
    text("TERM").is_some_and(|name| !["dumb", "linux", "cons25", "vt100", "vt220"].contains(&name.as_str()))
}

/// Logs go to standard error. `TWOSTROKE_LOG` filters them (`warn`, `info`, `engine=debug`) instead of `default`. A
/// file or a pipe gets no colours, nor does a terminal with `NO_COLOR` set (no-color.org). `waits`: a line waits until
/// it is read.
pub(crate) fn start_logging(default: &str, waits: bool) {
    let filter = match text("TWOSTROKE_LOG").map(EnvFilter::try_new) {
        Some(Ok(filter)) => filter,
        Some(Err(error)) => {
            note(&format!("TWOSTROKE_LOG: {error}: logging {default}"));
            EnvFilter::new(default)
        }
        None => EnvFilter::new(default),
    };
    let has_colours = std::io::stderr().is_terminal() && has_colours();
    let logging = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(has_colours);
    // A program that embeds the command may have started an engine before: then logs go where they went.
    let _ = match waits {
        true => logging.with_writer(std::io::stderr).try_init(),
        false => {
            Lines::start();
            logging.with_writer(|| Lines).try_init()
        }
    };
}

/// Whether `NO_COLOR` is unset.
pub(crate) fn has_colours() -> bool {
    text("NO_COLOR").is_none()
}

/// Where spans go, from OpenTelemetry's own variables; `None` if they name no collector.
pub(crate) fn otel() -> Option<OtelOptions> {
    otel_of(text)
}

fn otel_of(get: impl Fn(&str) -> Option<String>) -> Option<OtelOptions> {
    let first = |names: &[&str]| names.iter().find_map(|name| get(name));
    if get("OTEL_SDK_DISABLED").is_some_and(|value| is_true(&value)) {
        return None;
    }
    let base = || Some(get("OTEL_EXPORTER_OTLP_ENDPOINT")?.trim_end_matches('/').to_owned() + "/v1/traces");
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
    let headers = first(&["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"]).unwrap_or_default();
    Some(OtelOptions {
        traces_endpoint: get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(base)?,
        headers: headers.split(',').filter_map(pair).collect(),
        service_name: get("OTEL_SERVICE_NAME").unwrap_or_else(|| "twostroke".to_owned()),
    })
}

/// Where the supervisor that started this process hears how it is: systemd's `NOTIFY_SOCKET`.
pub(crate) fn notify_socket() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())
}

/// How often it wants to hear that this process lives, if it does: `WATCHDOG_USEC`, for the process `WATCHDOG_PID`.
pub(crate) fn watchdog() -> Option<Duration> {
    let is_meant = text("WATCHDOG_PID").is_none_or(|id| id == std::process::id().to_string());
    let microseconds: u64 = text("WATCHDOG_USEC").filter(|_| is_meant)?.parse().ok()?;
    // No supervisor asks more often; a zero would keep a core busy.
    (microseconds >= 1000).then(|| Duration::from_micros(microseconds))
}

/// The keys that `serve` asks for, where no flag says which.
pub(crate) fn api_keys() -> Vec<String> {
    text("TWOSTROKE_API_KEY").map_or_else(Vec::new, |keys| keys.split(',').map(|key| key.trim().to_owned()).collect())
}

/// The shell whose line is to be completed, where a script of `completions` asks.
pub(crate) fn completing() -> Option<String> {
    text("TWOSTROKE_COMPLETE")
}

/// What starts this program, if that is not the file that runs.
static STARTED_BY: OnceLock<Vec<OsString>> = OnceLock::new();

/// The command that starts this program where the file that runs is another's, such as an interpreter with a library:
/// what is put behind it is read as the program's own arguments. The first one that is named stays.
pub fn started_by(command: Vec<OsString>) {
    let _ = STARTED_BY.set(command);
}

/// Chat templates run in child processes of this very program. On Linux that is the file that runs, also when another
/// one has its name by now (an upgrade in place); elsewhere the file of that name, and a child of another version is
/// refused.
pub(crate) fn template_renderer() -> Renderer {
    const VERB: &str = "render-templates";
    if let Some(command) = STARTED_BY.get() {
        return Renderer::Child(command.iter().cloned().chain([VERB.into()]).collect());
    }
    let running = Path::new("/proc/self/exe");
    let program = match running.exists() {
        true => Some(running.to_owned()),
        false => std::env::current_exe().ok(),
    };
    let program = program.unwrap_or_else(|| "twostroke".into());
    Renderer::Child(vec![program.into(), VERB.into()])
}

/// Whether `RUST_BACKTRACE` asks for a trace.
pub(crate) fn wants_backtrace() -> bool {
    text("RUST_BACKTRACE").is_some_and(|value| value != "0")
}

/// 32 unpredictable bytes.
pub(crate) fn random_bytes() -> Result<[u8; 32], std::io::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Seconds since 1970 UTC.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// `2026-11-21T09:30:00Z`.
pub(crate) fn utc(seconds: i64) -> String {
    // Only what is thousands of years away has no date.
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "?".into(), |moment| moment.to_string())
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_named_as_for_every_other_program() {
        let otel = |set: &[(&str, &str)]| {
            let get = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
            otel_of(get)
        };
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
        assert!(otel(&[]).is_none() && otel(&[base, ("OTEL_SDK_DISABLED", "true")]).is_none());
        let given = otel(&[base, ("OTEL_EXPORTER_OTLP_HEADERS", "a=1, b = c=d,e")]).expect("a collector");
        assert_eq!(
            (given.traces_endpoint.as_str(), given.service_name.as_str()),
            ("http://c:4318/v1/traces", "twostroke")
        );
        assert_eq!(given.headers, [("a", "1"), ("b", "c=d")].map(|(name, value)| (name.to_owned(), value.to_owned())));
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/x");
        let given = otel(&[base, traces, ("OTEL_SERVICE_NAME", "fable")]).expect("a collector");
        assert_eq!((given.traces_endpoint.as_str(), given.service_name.as_str()), ("http://t/x", "fable"));
    }

    #[test]
    fn moments_are_written_as_rfc_3339_has_it() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_795_253_405, "2026-11-21T09:30:05Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (i64::MAX, "?"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
