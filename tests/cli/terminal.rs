//! A terminal for commands that want one: `script` from util-linux lends it.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::termios::{LocalFlags, tcgetattr};
use tests::twostroke;

/// A command on a pseudo-terminal.
pub(crate) struct Terminal {
    child: Child,
    screen: String,
    news: Receiver<Vec<u8>>,
}

impl Terminal {
    /// Runs a line of the shell.
    pub(crate) fn start(command: &str) -> Terminal {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", command, "/dev/null"]);
        for (name, value) in twostroke::<&str>(&[]).get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        script.env("TERM", "xterm");
        let mut child =
            script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script is part of every Debian");
        let mut stdout = child.stdout.take().expect("standard output is piped");
        let (sender, news) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = stdout.read(&mut bytes) {
                if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal { child, screen: String::new(), news }
    }

    /// Presses keys.
    pub(crate) fn type_in(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().expect("standard input is piped");
        stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()).expect("the terminal takes keys");
    }

    /// Waits until `text` shows up and returns what came before it since the last call.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            if let Some(at) = self.screen.find(text) {
                let before = self.screen[..at].to_string();
                self.screen.drain(..at + text.len());
                return before;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok(bytes) => self.screen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} on the terminal, but {:?}", self.screen),
            }
        }
    }

    /// Waits until the command under it has the terminal as it was: what is typed then are its lines and signals again,
    /// and no longer the keys of a line editor.
    pub(crate) fn wait_for_signals(&self) {
        let script = self.child.id();
        tests::wait("the terminal to be given back", || {
            let children =
                std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap_or_default();
            children.split_whitespace().any(|pid| {
                let terminal = File::open(format!("/proc/{pid}/fd/0")).expect("its standard input is the terminal");
                tcgetattr(&terminal).is_ok_and(|modes| modes.local_flags.contains(LocalFlags::ISIG))
            })
        });
    }

    /// Waits for the end.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
