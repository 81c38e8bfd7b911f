//! What a supervisor hears of a server: systemd's `Type=notify`, read from a socket of the test's own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Stdio;
use std::time::Duration;

use testing::Scratch;
use tests::{Server, signal, twostroke};

/// Longer than any message takes to come.
const PATIENCE: Duration = Duration::from_secs(300);

struct Supervisor(UnixDatagram);

impl Supervisor {
    fn at(address: &SocketAddr) -> Supervisor {
        let socket = UnixDatagram::bind_addr(address).expect("the place is free");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Supervisor(socket)
    }

    /// Everything up to the message that has this line.
    fn until(&self, line: &str) -> String {
        let mut heard = String::new();
        let mut message = [0; 4096];
        while !heard.lines().any(|each| each == line) {
            let length = self.0.recv(&mut message).unwrap_or_else(|error| panic!("no {line}: {error}; {heard}"));
            heard += std::str::from_utf8(&message[..length]).expect("messages are text");
            heard.push('\n');
        }
        heard
    }
}

fn serve(name: &OsStr, variables: &[(&str, &str)]) -> Server {
    let mut command = twostroke(&["serve", "--port", "0", "--json", "-t", "1", "--drain-timeout", "7"]);
    command.env("NOTIFY_SOCKET", name).envs(variables.iter().copied());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    Server::adopt(child, "{}")
}

#[test]
fn systemd_hears_of_the_start_the_engine_and_the_end() {
    let directory = Scratch::new("notify");
    let path = directory.join("socket");
    let supervisor = Supervisor::at(&SocketAddr::from_pathname(&path).expect("a short path"));
    let mut server = serve(path.as_os_str(), &[("WATCHDOG_USEC", "300000")]);
    let start = supervisor.until("READY=1");
    assert!(start.contains("STATUS=loading ") && start.contains("EXTEND_TIMEOUT_USEC=60000000"), "{start}");
    assert!(start.contains("STATUS=serving lantern at http://127.0.0.1:"), "{start}");
    assert!(!start.contains("WATCHDOG"), "{start}");
    supervisor.until("WATCHDOG=1");
    supervisor.until("WATCHDOG=1");
    signal("TERM", server.pid());
    let end = supervisor.until("STOPPING=1");
    assert!(end.contains("STATUS=draining, 0 requests run\nEXTEND_TIMEOUT_USEC=37000000"), "{end}");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn an_abstract_socket_will_do_and_the_watchdog_of_another_process_is_left_alone() {
    let name = format!("twostroke-notify-{}", std::process::id());
    let supervisor = Supervisor::at(&SocketAddr::from_abstract_name(&name).expect("a short name"));
    let variables = [("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")];
    let mut server = serve(format!("@{name}").as_ref(), &variables);
    supervisor.until("READY=1");
    signal("TERM", server.pid());
    let end = supervisor.until("STOPPING=1");
    assert!(!end.contains("WATCHDOG"), "{end}");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_socket_that_is_not_there_holds_no_server_up() {
    for name in ["no/such/socket", "", "@"] {
        let mut command = twostroke(&["serve", "--port", "0", "--json", "-t", "1"]);
        command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "x");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
        let server = Server::adopt(child, &line);
        assert_eq!(server.request("GET", "/health", &[], "").0, 200, "{name:?}");
    }
}
