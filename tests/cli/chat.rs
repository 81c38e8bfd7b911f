//! The chat prompt, on a terminal: `script` from util-linux lends one.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tests::{binary, twostroke};

/// A chat on a pseudo-terminal.
struct Terminal {
    child: Child,
    screen: String,
    news: Receiver<Vec<u8>>,
}

impl Terminal {
    fn start(arguments: &str) -> Terminal {
        // `exec`, for a shell in between would get Ctrl-C as well, and dash then ends with it once the chat is over.
        let command = format!("exec {} run {arguments}", binary().display());
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
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

    fn type_in(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().expect("standard input is piped");
        stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()).expect("the terminal takes keys");
    }

    /// Waits until `text` shows up and returns what came before it since the last call.
    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
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

    fn code(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

#[test]
fn a_conversation_goes_on_and_ends_with_exit() {
    let mut terminal = Terminal::start("--temperature 0 -n 8");
    terminal.wait_for(">>> ");
    terminal.type_in("What is 3 + 4?\r");
    let first = terminal.wait_for("bound by");
    assert!(first.contains("prefill") && !first.contains("cached"), "{first:?}");
    terminal.wait_for(">>> ");
    // The second question finds the first one's blocks only if the conversation is sent again with it.
    terminal.type_in(&format!("Thank you{}\r", ", and thank you".repeat(20)));
    terminal.wait_for("bound by");
    terminal.wait_for(">>> ");
    terminal.type_in("What is 5 + 5?\r");
    let third = terminal.wait_for("bound by");
    assert!(third.contains("cached"), "the conversation so far is in the prefix cache: {third:?}");
    terminal.wait_for(">>> ");
    terminal.type_in("/help\r");
    terminal.wait_for("/clear");
    terminal.wait_for(">>> ");
    terminal.type_in("/nonsense\r");
    terminal.wait_for("no such command");
    terminal.wait_for(">>> ");
    terminal.type_in("/exit\r");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_the_chat_and_ctrl_d_leaves() {
    let mut terminal = Terminal::start("--ignore-eos --json -q"); // to the end of the context, if nobody stops it
    terminal.wait_for(">>> ");
    terminal.type_in("Once upon a time\r");
    terminal.wait_for("\n");
    // The line editor gives the terminal back a moment after the line's end.
    thread::sleep(Duration::from_millis(300));
    terminal.type_in("\x03");
    terminal.wait_for("\"finish_reason\":\"interrupted\"");
    terminal.wait_for(">>> ");
    terminal.type_in("\x03");
    terminal.wait_for(">>> ");
    terminal.type_in("\x04");
    assert_eq!(terminal.code(), Some(0));
}
