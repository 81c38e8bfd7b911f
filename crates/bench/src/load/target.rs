//! The server under test: its address, what every request to it carries, and a connection to it, encrypted or not.
//!
//! https is checked against the certificate authorities that browsers trust, or, with `--insecure`, against none.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::load::plan::{PlannedPrompt, PlannedRequest};

const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// A server that sends nothing for so long has forgotten the request.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);
/// The same for questions that no model has to think about.
const LOOKUP_LIMIT: Duration = Duration::from_secs(20);
/// Most bytes of an answer to them; a timeline has a thousand steps at most.
const LONGEST_LOOKUP: usize = 4 << 20;

/// Which of the two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`, with token ids.
    Completions,
    /// `/v1/chat/completions`, with text.
    Chat,
}

/// Where requests go, and what all of them have in common.
#[derive(Clone, Debug)]
pub struct Target {
    host: String,
    port: u16,
    path: String,
    headers: HeaderMap,
    /// `None`: plain http.
    encryption: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// Which route it is.
    pub api: Api,
    /// The model's name in requests; empty: left out.
    pub model: String,
    /// Further fields of every body, such as `temperature` or `ignore_eos`.
    pub fields: Map<String, Value>,
}

/// Why a server cannot be asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// Not a URL that is understood.
    #[error("{url}: {problem}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A header that is none.
    #[error("--header {0:?} is not NAME=VALUE")]
    Header(String),
    /// It was asked and gave no usable answer.
    #[error("{0}")]
    Answer(String),
}

/// An open connection that carries one request.
pub(crate) struct Connection(SendRequest<Full<Bytes>>);

impl Target {
    /// A server at `base_url` (`http[s]://HOST[:PORT][/PREFIX]`) with its route for `api`, or `endpoint` instead.
    /// `insecure`: any certificate is accepted; without one it would seem to have had an effect.
    pub fn new(base_url: &str, endpoint: Option<&str>, api: Api, insecure: bool) -> Result<Target, TargetError> {
        let refuse = |problem: &str| TargetError::Url { url: base_url.to_owned(), problem: problem.to_owned() };
        let uri: Uri = base_url.parse().map_err(|_| refuse("is not a URL such as http://127.0.0.1:8000"))?;
        let default_port = match uri.scheme_str() {
            Some("http") if insecure => return Err(refuse("is not https, where alone --insecure is of use")),
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err(refuse("does not begin with http:// or https://")),
        };
        if uri.query().is_some() {
            return Err(refuse("is the address of a server and has no question mark"));
        }
        // `Uri` takes any digits for a port and then has none.
        let has_port = |authority: &str| authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        if authority.contains('@') {
            return Err(refuse("holds a name or a password, which would not be sent; --api-key and --header are"));
        }
        if has_port(authority) && uri.port_u16().is_none_or(|port| port == 0) {
            return Err(refuse("has a port that is none"));
        }
        let host = uri.host().map(|host| host.trim_matches(['[', ']'])).filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| refuse("names no host"))?.to_owned();
        let encryption = match default_port {
            80 => None,
            _ => {
                let name = ServerName::try_from(host.clone()).map_err(|_| refuse("names a host that is none"))?;
                Some((Arc::new(encryption(insecure)), name))
            }
        };
        let route = endpoint.unwrap_or(match api {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        });
        if !route.starts_with('/') || route.parse::<Uri>().is_err() {
            let problem = "is not a route such as /v1/completions".to_owned();
            return Err(TargetError::Url { url: route.to_owned(), problem });
        }
        Ok(Target {
            host,
            port: uri.port_u16().unwrap_or(default_port),
            path: format!("{}{route}", uri.path().trim_end_matches('/')),
            headers: HeaderMap::new(),
            encryption,
            api,
            model: String::new(),
            fields: Map::new(),
        })
    }

    /// Sends `NAME=VALUE` with every request.
    pub fn add_header(&mut self, header: &str) -> Result<(), TargetError> {
        let refuse = || TargetError::Header(header.to_owned());
        let (name, value) = header.split_once('=').ok_or_else(refuse)?;
        let name: HeaderName = name.trim().parse().map_err(|_| refuse())?;
        self.headers.insert(name, value.trim().parse().map_err(|_| refuse())?);
        Ok(())
    }

    /// Sends this key as a bearer token with every request.
    pub fn set_key(&mut self, key: &str) -> Result<(), TargetError> {
        let mut value: HeaderValue = format!("Bearer {key}")
            .parse()
            .map_err(|_| TargetError::Answer("the API key has unprintable characters".into()))?;
        value.set_sensitive(true);
        self.headers.insert(AUTHORIZATION, value);
        Ok(())
    }

    pub(crate) fn body(&self, ask: &PlannedRequest) -> String {
        let mut body = self.fields.clone();
        if !self.model.is_empty() {
            body.insert("model".into(), json!(self.model));
        }
        match &ask.prompt {
            PlannedPrompt::Tokens(ids) => body.insert("prompt".into(), json!(ids)),
            PlannedPrompt::Words(text) if self.api == Api::Chat => {
                body.insert("messages".into(), json!([{ "role": "user", "content": text }]))
            }
            PlannedPrompt::Words(text) => body.insert("prompt".into(), json!(text)),
            PlannedPrompt::Chat(said) if self.api == Api::Chat => {
                let roles = ["user", "assistant"].into_iter().cycle();
                let messages = said.iter().zip(roles).map(|(text, role)| json!({ "role": role, "content": text }));
                body.insert("messages".into(), messages.collect())
            }
            PlannedPrompt::Chat(said) => body.insert("prompt".into(), json!(said.join(" "))),
        };
        if ask.is_quoted && self.api == Api::Completions {
            body.insert("return_token_ids".into(), json!(true));
        }
        body.insert("max_tokens".into(), json!(ask.max_tokens));
        body.insert("stream".into(), json!(true));
        body.insert("stream_options".into(), json!({ "include_usage": true }));
        Value::Object(body).to_string()
    }

    /// A route beside the one under test: `name` behind `/v1/`.
    pub(crate) fn beside(&self, name: &str) -> String {
        self.at_root(&format!("/v1/{name}"))
    }

    /// A route of the server itself: `/live/info`.
    pub(crate) fn at_root(&self, route: &str) -> String {
        let prefix = self.path.split_once("/v1/").map_or("", |(prefix, _)| prefix);
        format!("{prefix}{route}")
    }

    /// Asks for `path`; returns when the head of the answer has come.
    pub(crate) async fn get(&self, connection: &mut Connection, path: &str) -> Result<Response<Incoming>, String> {
        self.send(connection, Method::GET, path, String::new()).await
    }

    /// Opens a connection, encrypted if the URL says so, ready for a request.
    pub(crate) async fn connect(&self) -> Result<Connection, String> {
        let opening = timeout(CONNECT_LIMIT, self.open()).await;
        let opened = opening.map_err(|_| format!("no connection within {} s", CONNECT_LIMIT.as_secs())).flatten();
        opened.map(Connection).map_err(|problem| format!("{self}: {problem}"))
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let opened = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = opened.map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => {
                "Connection refused: no server listens there, twostroke serve starts one".to_owned()
            }
            _ => error.to_string(),
        })?;
        let _ = stream.set_nodelay(true); // a loopback without it works as well
        match &self.encryption {
            None => over(stream).await,
            Some((config, name)) => {
                let connector = TlsConnector::from(config.clone());
                let stream = connector.connect(name.clone(), stream).await.map_err(|error| refused(&error))?;
                over(stream).await
            }
        }
    }

    /// Sends the request under test; returns when its head has come.
    pub(crate) async fn post(&self, connection: &mut Connection, body: String) -> Result<Response<Incoming>, String> {
        let answer = timeout(SILENCE_LIMIT, self.send(connection, Method::POST, &self.path, body)).await;
        answer.map_err(|_| silence(SILENCE_LIMIT))?
    }

    /// Asks a route that needs no model: status and body.
    pub(crate) async fn look_up(&self, path: &str) -> Result<(StatusCode, Bytes), String> {
        self.exchange(Method::GET, path, String::new()).await
    }

    /// The same of a POST of JSON.
    pub(crate) async fn tell(&self, path: &str, body: String) -> Result<(StatusCode, Bytes), String> {
        self.exchange(Method::POST, path, body).await
    }

    async fn exchange(&self, method: Method, path: &str, body: String) -> Result<(StatusCode, Bytes), String> {
        let mut connection = self.connect().await?;
        let exchange = async {
            let answer = self.send(&mut connection, method, path, body).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, LONGEST_LOOKUP).collect().await;
            let body = body.map_err(|error| format!("{path}: {}", chain(error.as_ref())))?;
            Ok((head.status, body.to_bytes()))
        };
        timeout(LOOKUP_LIMIT, exchange).await.map_err(|_| format!("{self}{path}: {}", silence(LOOKUP_LIMIT)))?
    }

    async fn send(
        &self,
        connection: &mut Connection,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.to_string());
        if let Some(headers) = request.headers_mut() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
            headers.extend(self.headers.clone());
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let answer = connection.0.send_request(request).await;
        answer.map_err(|error| format!("{self}: {}", chain(&error)))
    }
}

/// Host and port, as messages and the header `Host` name it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

async fn over<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| chain(&error))?;
    tokio::spawn(connection);
    Ok(sender)
}

/// How often a body's next part is waited for, and no longer.
pub(crate) async fn patiently<T>(next: impl Future<Output = T>) -> Result<T, String> {
    timeout(SILENCE_LIMIT, next).await.map_err(|_| silence(SILENCE_LIMIT))
}

/// An error with its causes: hyper's own text alone often says only "connection error".
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn silence(limit: Duration) -> String {
    format!("the server sent nothing for {} s", limit.as_secs())
}

/// Why no encrypted connection came about, and what to do where there is something.
fn refused(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(problem)) => {
            format!("its certificate is not trusted ({problem:?}); --insecure asks it all the same")
        }
        Some(rustls::Error::InvalidMessage(_)) => "it does not speak https; is it http://?".to_owned(),
        Some(other) => other.to_string(),
        None => error.to_string(),
    }
}

fn encryption(insecure: bool) -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring has the suites of the default versions");
    if insecure {
        return config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
    }
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    config.with_root_certificates(roots).with_no_client_auth()
}

/// Takes any certificate, as `--insecure` says; that the other side has its key is still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_are_none_are_refused() {
        for (url, problem) in [
            ("localhost:8000", "does not begin with http:// or https://"),
            ("ftp://x", "does not begin with http:// or https://"),
            ("http://", "is not a URL"),
            ("not a url", "is not a URL"),
            ("http://h:99999", "has a port that is none"),
            ("http://h:0", "has a port that is none"),
            ("http://h/v1?key=1", "question mark"),
            ("https://me:secret@h", "--api-key"),
            ("https://a_b!c/", "names a host that is none"),
        ] {
            let error = Target::new(url, None, Api::Chat, false).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(url), "{url}: {error}");
        }
        let insecure = Target::new("http://h", None, Api::Chat, true).unwrap_err().to_string();
        assert!(insecure.contains("http://h: is not https, where alone --insecure is of use"), "{insecure}");
        assert!(Target::new("http://h", Some("v1"), Api::Chat, false).is_err());
        assert!(Target::new("http://h", Some("/v1 /x"), Api::Chat, false).is_err());
    }

    #[test]
    fn hosts_ports_and_routes_come_from_the_url() {
        for (url, host, port, path, beside) in [
            ("http://h:81/base/", "h", 81, "/base/v1/chat/completions", "/base/v1/models"),
            ("http://h", "h", 80, "/v1/chat/completions", "/v1/models"),
            ("https://h", "h", 443, "/v1/chat/completions", "/v1/models"),
            ("https://[::1]:8443", "::1", 8443, "/v1/chat/completions", "/v1/models"),
        ] {
            let target = Target::new(url, None, Api::Chat, false).unwrap();
            assert_eq!((target.host.as_str(), target.port, target.path.as_str()), (host, port, path));
            assert_eq!(
                (target.beside("models"), target.encryption.is_some()),
                (beside.into(), url.starts_with("https"))
            );
        }
    }
}
