//! `twostroke top`: the live view of a server in a terminal.

mod screen;

use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use bench::load::{Feed, Target};
use console::Term;
use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval};

use crate::commands::top::screen::Seen;
use crate::console::{put, put_line};
use crate::failure::Failure;
use crate::flags::TopFlags;
use crate::signals::{self, Ends};

const FRAME: Duration = Duration::from_millis(200);
/// Everything that the log has: a small model makes more steps in ten seconds than a feed begins with.
const FEED: &str = "/live/feed?after=0";
/// Columns and lines of `--once` where there is no terminal that says otherwise.
const PLAIN: (usize, usize) = (100, 40);

pub(crate) fn top(flags: &TopFlags) -> Result<(), Failure> {
    let target = flags.server.target()?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !flags.once && !is_terminal {
        return Err(Failure::usage("standard output is not a terminal: --once prints one screen as text"));
    }
    let runtime = signals::runtime(0)?;
    let result = runtime.block_on(async {
        let mut seen = Seen::new(info(&target, flags).await?);
        let mut feed = Feed::open(&target, FEED).await.map_err(Failure::usage)?;
        while !seen.is_complete() {
            hear(&mut feed, &mut seen).await?;
        }
        match flags.once {
            true => put_line(seen.lines(PLAIN.0, PLAIN.1, false).join("\n").trim_end()),
            false => watch(&mut feed, &mut seen).await,
        }
    });
    // A thread may still wait for a key.
    runtime.shutdown_background();
    result
}

/// What is served there; a server that is none of ours has no such route.
async fn info(target: &Target, flags: &TopFlags) -> Result<serde_json::Value, Failure> {
    let (status, info) = bench::load::ask(target, "/live/info").await.map_err(Failure::usage)?;
    match (status, info["now_ms"].is_number()) {
        (200, true) => Ok(info),
        (401, _) => Err(Failure::usage(format!("{} asks for a key: set --api-key", flags.server.url))),
        (503, _) => Err(Failure::usage(format!("{} is shutting down", flags.server.url))),
        _ => Err(Failure::usage(format!(
            "{} is not a twostroke server with a live view (/live/info answered {status}; is it started with --no-ui?)",
            flags.server.url
        ))),
    }
}

async fn hear(feed: &mut Feed, seen: &mut Seen) -> Result<(), Failure> {
    match feed.next().await.map_err(Failure::failed)? {
        Some((event, data)) => seen.hear(&event, data),
        None => return Err(Failure::failed("the server has ended the feed: it shuts down")),
    }
    Ok(())
}

/// Draws until q, Ctrl-C or Ctrl-D, or the feed ends. The terminal is then as it was.
async fn watch(feed: &mut Feed, seen: &mut Seen) -> Result<(), Failure> {
    let (mut ends, mut terminate) = (Ends::listen()?, signals::terminations()?);
    let term = Term::stdout();
    let colour = console::colors_enabled();
    let _borrowed = Borrowed::take()?;
    let mut keys = keys();
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            heard = hear(feed, seen) => heard?,
            _ = frames.tick() => {
                let (height, width) = term.size();
                let lines = seen.lines(usize::from(width), usize::from(height), colour);
                // Each line ends with "clear the rest", the last with "clear below": nothing flickers.
                put(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))?;
            }
            key = keys.recv() => if matches!(key, None | Some(b'q' | b'Q' | 3 | 4)) { return Ok(()) },
            () = ends.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        }
    }
}

/// Keys as they are pressed.
fn keys() -> UnboundedReceiver<u8> {
    let (sender, keys) = unbounded_channel();
    std::thread::spawn(move || {
        for key in io::stdin().lock().bytes() {
            if key.is_err() || key.is_ok_and(|key| sender.send(key).is_err()) {
                return;
            }
        }
    });
    keys
}

/// The terminal while it shows a screen and not lines; given back as it was, whatever happens.
struct Borrowed(Termios);

impl Borrowed {
    fn take() -> Result<Borrowed, Failure> {
        let before = termios::tcgetattr(io::stdin()).map_err(io::Error::from)?;
        let borrowed = Borrowed(before.clone());
        let mut raw = before;
        // Keys come one by one and are not shown; Ctrl-C is still a signal.
        raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).map_err(io::Error::from)?;
        // Another screen, no cursor.
        put("\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(borrowed)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = put("\x1b[?25h\x1b[?1049l");
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}
