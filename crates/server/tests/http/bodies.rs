//! Every route by a body that does not behave, in a long run by every one. Routes are the server's own list, so a new
//! one is in the walk.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use server::{Patience, ServerOptions};

use crate::host::{Host, local_server, small_engine, wait};
use testing::one_of;

/// What is sent of a body, after a head that announces it.
#[derive(Clone, Copy, Debug)]
enum Body {
    Stops,
    Drips,
    EndsEarly,
    Huge,
    Endless,
}

const BODIES: [Body; 5] = [Body::Stops, Body::Drips, Body::EndsEarly, Body::Huge, Body::Endless];

/// The beginning of a body of the kind that the route takes.
fn beginning(path: &str) -> (&'static str, &'static [u8]) {
    match path {
        "/v1/files" => (
            "multipart/form-data; boundary=edge",
            b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nabc",
        ),
        _ => ("application/json", b"{\"messages\": ["),
    }
}

/// What comes back, up to the end of the status line; empty where the connection just ends. Sends on until then.
fn status(host: &Host, method: &str, path: &str, body: Body) -> String {
    let (kind, begun) = beginning(path);
    let path = path.replace("{*", "{").replace("{id}", "x").replace("{other}", "y").replace("{model}", "z");
    let length = match body {
        Body::Huge => "content-length: 99999999999",
        Body::Endless => "transfer-encoding: chunked",
        _ => "content-length: 100000",
    };
    let socket = TcpStream::connect(host.address).expect("the server listens");
    socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let mut out = socket.try_clone().unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n{length}\r\n\r\n");
    out.write_all(head.as_bytes()).unwrap();
    let sender = std::thread::spawn(move || {
        // What cannot be sent any more is not wanted any more.
        let mut send = |bytes: &[u8]| out.write_all(bytes).is_ok();
        match body {
            Body::Stops | Body::Huge => drop(send(begun)),
            Body::EndsEarly => {
                send(begun);
                let _ = out.shutdown(Shutdown::Write);
            }
            Body::Drips => {
                send(begun);
                while send(b" ") {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Body::Endless => {
                let chunk = [format!("{:x}\r\n", begun.len()).as_bytes(), begun, b"\r\n"].concat();
                let spaces = [b"4000\r\n".as_slice(), &[b' '; 0x4000], b"\r\n"].concat();
                let mut goes_on = send(&chunk);
                while goes_on {
                    goes_on = send(&spaces);
                }
            }
        }
    });
    let mut said = Vec::new();
    let read = std::io::Read::read_to_end(&mut std::io::Read::take(&socket, 12), &mut said);
    if let Err(error) = read {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "{method} {path} {body:?}: held without end");
    }
    let _ = socket.shutdown(Shutdown::Both);
    sender.join().unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn every_route_gives_up_every_body_that_does_not_come() {
    let place = testing::Scratch::new("bodies");
    let short = Duration::from_millis(300);
    let options = ServerOptions {
        batch_directory: Some(place.to_path_buf()),
        patience: Patience { quiet: short, body: 3 * short, file: 3 * short },
        ..local_server()
    };
    let host = Host::with(small_engine(), options);
    // What is asked with GET may answer at once, and streams that never end are for those who watch.
    let routes = server::routes().filter(|(_, path)| *path != "/live/feed");
    let mut asked = Vec::new();
    for (at, (method, path)) in routes.enumerate() {
        // Files are read by themselves, and have each body in a quick run too.
        let bodies = if path == "/v1/files" { BODIES.to_vec() } else { one_of(BODIES, at).collect() };
        asked.extend(bodies.into_iter().map(|body| (method, path, body)));
    }
    std::thread::scope(|scope| {
        for some in asked.chunks(12) {
            let host = &host;
            scope.spawn(move || {
                for &(method, path, body) in some {
                    let said = status(host, method, path, body);
                    let is_given_up = said.is_empty() || said.starts_with("HTTP/1.1 ");
                    assert!(is_given_up, "{method} {path} {body:?}: {said}");
                    if method == "POST" && path == "/v1/files" {
                        let expected: &[&str] = match body {
                            Body::Stops | Body::Drips => &["HTTP/1.1 408"],
                            // A busy machine may send the end after the server's patience.
                            Body::EndsEarly => &["", "HTTP/1.1 400", "HTTP/1.1 408"],
                            Body::Huge => &["HTTP/1.1 413"],
                            Body::Endless => &["HTTP/1.1 408", "HTTP/1.1 413", ""],
                        };
                        assert!(expected.contains(&said.as_str()), "{body:?}: {said}");
                    }
                }
            });
        }
    });
    host.quiet();
    wait("the connections to end", || host.metric("twostroke_http_connections") <= 1.0);
    wait("nothing of them to stay", || std::fs::read_dir(place.join("files")).unwrap().count() == 0);
}
