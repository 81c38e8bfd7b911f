//! Runs against servers that answer as written here.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{
    Api, Arrivals, Dataset, Metric, PlannedRequest, RequestOutcome, Target, beside, first_model, probe, run, schedule,
    stalls, summarize, timeline,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// For localhost, valid for a hundred years, made with `openssl req -x509 -newkey ec`.
const CERTIFICATE: &[u8] = include_bytes!("tests/localhost.pem");

/// What the server does with a request.
#[derive(Clone, Copy)]
enum Script {
    /// Streams this many tokens, one per interval in milliseconds.
    Tokens(usize, u64),
    /// Streams three tokens once this many requests have been open at the same time.
    Together(usize),
    /// Answers with a status and no stream.
    Status(&'static str),
    /// Breaks off after a token.
    Cut,
    /// Something that is no stream of events.
    Rubbish,
    /// The same without an end.
    Flood,
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

/// A server, its address, and the most requests that it had open at once.
async fn serve(script: Script) -> (String, Arc<AtomicUsize>) {
    serve_over(script, None).await
}

/// The same, encrypted, with a certificate that no authority vouches for.
async fn serve_https(script: Script) -> (String, Arc<AtomicUsize>) {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    let key = PrivateKeyDer::from_pem_slice(CERTIFICATE).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    serve_over(script, Some(Arc::new(config.with_single_cert(vec![certificate], key).unwrap()))).await
}

async fn serve_over(script: Script, encryption: Option<Arc<ServerConfig>>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scheme = if encryption.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", listener.local_addr().unwrap());
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = most.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (open, most, encryption) = (open.clone(), most.clone(), encryption.clone());
            tokio::spawn(async move {
                most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                // A client that gave up is no failure of the server's.
                let _ = match encryption {
                    None => reply(stream, script, &most).await,
                    Some(config) => match TlsAcceptor::from(config).accept(stream).await {
                        Ok(stream) => reply(stream, script, &most).await,
                        Err(error) => Err(error),
                    },
                };
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    (url, seen)
}

async fn reply<S>(mut stream: S, script: Script, most: &AtomicUsize) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    // Bodies here end with their closing brace.
    while !request.ends_with(b"}") && !request.starts_with(b"GET") {
        let count = stream.read(&mut buffer).await?;
        request.extend_from_slice(&buffer[..count]);
        if count == 0 {
            return Ok(());
        }
        // The greeting of https.
        if request.starts_with(&[0x16]) {
            return stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
        }
    }
    if request.starts_with(b"GET") {
        let body = r#"{"data":[{"id":"the-model"}]}"#;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        return stream.write_all(head.as_bytes()).await;
    }
    if let Script::Together(count) = script {
        // The most never falls, so each of them sees it, whichever leaves first.
        while most.load(Ordering::Relaxed) < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    match script {
        Script::Tokens(..) | Script::Together(_) => {
            let (count, ms) = if let Script::Tokens(count, ms) = script { (count, ms) } else { (3, 1) };
            stream.write_all(HEAD.as_bytes()).await?;
            for index in 0..count {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                let end = if index + 1 == count { r#""length""# } else { "null" };
                let event =
                    format!("data: {{\"id\":\"c\",\"choices\":[{{\"text\":\"a\",\"finish_reason\":{end}}}]}}\n\n");
                stream.write_all(event.as_bytes()).await?;
            }
            stream.write_all(b"data: [DONE]\n\n").await
        }
        Script::Status(status) => {
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: 9\r\nConnection: close\r\n\r\nout\nof it");
            stream.write_all(text.as_bytes()).await
        }
        Script::Cut => {
            let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
            stream.write_all(format!("{HEAD}{event}").as_bytes()).await
        }
        Script::Flood => {
            stream.write_all(HEAD.as_bytes()).await?;
            loop {
                stream.write_all(&b"<p>hello</p>\n".repeat(1000)).await?;
            }
        }
        Script::Rubbish => stream.write_all(format!("{HEAD}<html>hello</html>\n").as_bytes()).await,
    }
}

fn load(count: usize, rate: f64) -> Vec<PlannedRequest> {
    let dataset = Dataset::Random { input: 8, output: 5, ratio: 0.0, prefix: 0 };
    schedule(&dataset, count, &Arrivals { rate, burstiness: 1.0, ramp: None }, false, 1).unwrap()
}

async fn measure(script: Script, count: usize, most: Option<usize>) -> (Vec<RequestOutcome>, usize) {
    let (url, seen) = serve(script).await;
    let target = Arc::new(Target::new(&url, None, Api::Completions, false).unwrap());
    let outcomes = run(target, load(count, f64::INFINITY), most, pending(), |_| ()).await;
    (outcomes, seen.load(Ordering::Relaxed))
}

#[tokio::test]
async fn every_token_of_every_request_is_timed() {
    let (outcomes, _) = measure(Script::Tokens(5, 2), 20, None).await;
    assert_eq!(outcomes.len(), 20);
    for outcome in &outcomes {
        assert_eq!((outcome.error.as_deref(), outcome.output_tokens, outcome.itls.len()), (None, 5, 4));
        let sum = outcome.ttft + outcome.itls.iter().sum::<f64>();
        assert!(outcome.ttft > 0.0 && sum <= outcome.latency, "{outcome:?}");
    }
    let summary = summarize(&outcomes, &[]);
    assert_eq!((summary.completed, summary.total_output), (20, 100));
    assert_eq!(summary.distribution(Metric::Itl).len(), 80);
}

#[tokio::test]
async fn a_thousand_streams_are_open_at_once() {
    let (outcomes, seen) = measure(Script::Together(1000), 1000, None).await;
    assert_a_thousand(&outcomes, seen);
}

#[tokio::test]
async fn a_thousand_encrypted_streams_are_open_at_once() {
    let (url, seen) = serve_https(Script::Together(1000)).await;
    let target = Arc::new(Target::new(&url, None, Api::Completions, true).unwrap());
    let outcomes = run(target, load(1000, f64::INFINITY), None, pending(), |_| ()).await;
    assert_a_thousand(&outcomes, seen.load(Ordering::Relaxed));
}

fn assert_a_thousand(outcomes: &[RequestOutcome], seen: usize) {
    let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.error.as_ref()).collect();
    assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed.first());
    assert_eq!((outcomes.len(), seen), (1000, 1000));
    let stalls = stalls(outcomes);
    assert_eq!(stalls.steady.len() + stalls.stalled.len(), 2000, "each gap has a label");
}

#[tokio::test]
async fn a_certificate_without_an_authority_is_refused_unless_told_otherwise() {
    let (url, _) = serve_https(Script::Tokens(3, 1)).await;
    let asked = async |insecure| {
        let target = Target::new(&url, None, Api::Completions, insecure).unwrap();
        probe(&target, &load(1, 1.0)[0]).await
    };
    let error = asked(false).await.unwrap_err().to_string();
    assert!(error.contains("certificate is not trusted") && error.contains("--insecure"), "{error}");
    let outcome = asked(true).await.unwrap();
    assert_eq!(outcome.output_tokens, 3);
    assert!(outcome.connect > 0.0, "{outcome:?}");
}

#[tokio::test]
async fn http_and_https_are_told_apart() {
    let (url, _) = serve(Script::Tokens(3, 1)).await;
    let target = Target::new(&url.replace("http:", "https:"), None, Api::Completions, true).unwrap();
    let error = probe(&target, &load(1, 1.0)[0]).await.unwrap_err().to_string();
    assert!(error.contains("does not speak https"), "{error}");
}

#[tokio::test]
async fn probes_go_beside_the_load_whatever_became_of_those_before() {
    // None is answered before three are open.
    let (url, seen) = serve(Script::Together(3)).await;
    let target = Arc::new(Target::new(&url, None, Api::Completions, false).unwrap());
    let together = async {
        while seen.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let until = async { tokio::time::timeout(Duration::from_secs(60), together).await.unwrap_or_default() };
    let probes = beside(target, load(1, 1.0)[0].clone(), 50.0, until).await;
    assert!(probes.len() >= 3 && probes.iter().all(|probe| probe.error.is_none()), "{probes:?}");
    assert!(seen.load(Ordering::Relaxed) >= 3, "none waits for the one before");
}

#[tokio::test]
async fn only_a_server_that_keeps_timelines_is_read_as_one() {
    let (url, _) = serve(Script::Tokens(3, 1)).await;
    let target = Target::new(&url, None, Api::Completions, false).unwrap();
    // It answers every GET with 200 and a list of models.
    assert_eq!(timeline(&target, "c").await, None);
    assert_eq!(timeline(&target, "../../metrics").await, None, "no id leads elsewhere");
    assert_eq!(timeline(&target, "").await, None);
}

#[test]
fn a_trace_keeps_its_moments_and_lengths() {
    let path = std::env::temp_dir().join(format!("twostroke-load-{}.jsonl", std::process::id()));
    let row = |ms, input| format!("{{\"timestamp\": {ms}, \"input_length\": {input}, \"output_length\": 4}}\n");
    std::fs::write(&path, row(70, 30) + &row(190, 45)).unwrap();
    let dataset = Dataset::Trace(sim::trace::read(&path, 0).unwrap());
    std::fs::remove_file(&path).unwrap();
    let load = schedule(&dataset, 10, &Arrivals { rate: 1.0, burstiness: 1.0, ramp: None }, false, 1).unwrap();
    let seen: Vec<_> = load.iter().map(|asked| (asked.at.as_millis(), asked.prompt_tokens, asked.max_tokens)).collect();
    assert_eq!(seen, [(0, 30, 4), (120, 45, 4)]);
}

#[tokio::test]
async fn endless_rubbish_ends() {
    let (outcomes, _) = measure(Script::Flood, 1, None).await;
    let error = outcomes[0].error.as_deref().unwrap();
    assert!(error.contains("no events"), "{error}");
}

#[tokio::test]
async fn no_more_are_open_than_asked() {
    // All are due at once, and none is answered before seven are open.
    let (outcomes, seen) = measure(Script::Together(7), 40, Some(7)).await;
    assert!(outcomes.iter().all(|outcome| outcome.error.is_none()));
    assert_eq!(seen, 7);
    assert!(outcomes.iter().any(|outcome| outcome.queued > 0.0), "waiting for a place is told apart");
}

#[tokio::test]
async fn failures_say_what_the_server_did() {
    for (script, problem) in [
        (Script::Status("503 Service Unavailable"), "503 Service Unavailable: out of it"),
        (Script::Cut, "the connection ended before the answer did"),
        (Script::Rubbish, "not a stream of events"),
    ] {
        let (outcomes, _) = measure(script, 3, None).await;
        for outcome in outcomes {
            let error = outcome.error.unwrap();
            assert!(error.contains(problem), "{error:?} does not say {problem:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_before_the_run() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let target = Target::new(&format!("http://{free}"), None, Api::Completions, false).unwrap();
    let error = probe(&target, &load(1, 1.0)[0]).await.unwrap_err().to_string();
    assert!(error.contains(&free.to_string()) && error.contains("refused"), "{error}");
}

#[tokio::test]
async fn the_models_name_can_be_asked_for() {
    let (url, _) = serve(Script::Rubbish).await;
    let target = Target::new(&url, None, Api::Chat, false).unwrap();
    assert_eq!(first_model(&target).await.unwrap(), "the-model");
}

#[tokio::test]
async fn stopping_keeps_what_has_ended() {
    let (url, _) = serve(Script::Tokens(2, 1)).await;
    let target = Arc::new(Target::new(&url, None, Api::Completions, false).unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut stop = Some(stop);
    // A request every thousand seconds.
    let ended = |count: usize| {
        if count == 1 {
            let _ = stop.take().map(|stop| stop.send(()));
        }
    };
    let waiting = async {
        let _ = stopped.await;
    };
    let mut load = load(10, 0.001);
    load[0].at = Duration::ZERO;
    let outcomes = run(target, load, None, waiting, ended).await;
    assert_eq!((outcomes.len(), outcomes[0].error.as_deref()), (1, None));
}
