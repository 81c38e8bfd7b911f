//! What connections come over: TCP, TLS on TCP, or a Unix socket.
//!
//! ```text
//! --host, --port ----> TcpListener --accept--> NewConnection --+--(--ssl-certfile)--> handshake --+--> Peer
//! --uds PATH --------> UnixListener --accept--> NewConnection -+----------------------------------+
//! ```
//!
//! The handshake is the connection's own work, with the time that a request's head has: a slow one keeps no
//! other from being accepted. TLS is rustls's, 1.2 and 1.3, without certificates of clients. A Unix socket is there for
//! all who may write to its file; a file that a server left behind is taken over, and it is gone when the server ends.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::{Error, ServerConfig};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Bytes of a file of certificates: a chain is some thousand.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// Where a server is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// By address and port, under TLS or not.
    Tcp {
        /// Address and port.
        at: SocketAddr,
        /// Whether under TLS.
        tls: bool,
    },
    /// By a file.
    Unix(PathBuf),
}

impl Address {
    /// Address and port, if it has one.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Address::Tcp { at, .. } => Some(*at),
            Address::Unix(_) => None,
        }
    }
}

/// The beginning of its URLs; of a Unix socket, which has none, its file behind `unix:`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { at, tls: false } => write!(f, "http://{at}"),
            Address::Tcp { at, tls: true } => write!(f, "https://{at}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A certificate and its key, as files in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate first, then those that lead from it to a root.
    pub certificates: PathBuf,
    /// The private key, without a password.
    pub key: PathBuf,
}

/// What is wrong with them: which file, and why.
pub struct BadTls {
    pub file: PathBuf,
    pub problem: String,
}

pub fn acceptor(names: &TlsFiles) -> Result<TlsAcceptor, BadTls> {
    let wrong = |file: &Path, problem: String| BadTls { file: file.to_owned(), problem };
    let read = |file: &Path| files::read(file, MAX_PEM_BYTES).map_err(|error| wrong(file, error.to_string()));
    let certificates = CertificateDer::pem_slice_iter(&read(&names.certificates)?).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| wrong(&names.certificates, pem(&error)))?;
    if certificates.is_empty() {
        return Err(wrong(&names.certificates, "it has no certificate (-----BEGIN CERTIFICATE-----)".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&names.key)?).map_err(|error| wrong(&names.key, pem(&error)))?;
    // What is between the marks is not looked at before.
    ring::sign::any_supported_type(&key).map_err(|_| {
        let kinds = "RSA, ECDSA of P-256 or P-384, or Ed25519";
        wrong(&names.key, format!("its private key is none that can be read: {kinds}"))
    })?;
    ParsedCertificate::try_from(&certificates[0])
        .map_err(|_| wrong(&names.certificates, "its first certificate is none that can be read".to_owned()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&names.key, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(certificates, key);
    let mut config = config.map_err(|error| match error {
        Error::InconsistentKeys(_) => wrong(&names.key, "it is not the key of that certificate".to_owned()),
        error => wrong(&names.key, format!("with that certificate: {error}")),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn pem(error: &rustls::pki_types::pem::Error) -> String {
    use rustls::pki_types::pem::Error;
    match error {
        Error::NoItemsFound => "it has no private key that can be read (one with a password cannot)".to_owned(),
        Error::MissingSectionEnd { .. } => {
            "it is cut off: a part that begins has no end (-----END ...-----)".to_owned()
        }
        Error::IllegalSectionStart { .. } => "it is no PEM: a line that begins a part is broken".to_owned(),
        Error::Base64Decode(_) => "it is no PEM: what is between its marks is not base64".to_owned(),
        _ => "it is no PEM".to_owned(),
    }
}

/// A socket that listens.
pub struct Socket {
    kind: Kind,
    tls: Option<TlsAcceptor>,
}

enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, File),
}

/// The file of a Unix socket, removed with the socket.
struct File {
    path: PathBuf,
    /// Device and number: what has the name later need not be this one.
    is: Option<(u64, u64)>,
}

impl File {
    fn of(path: &Path) -> File {
        File { path: path.to_owned(), is: File::at(path) }
    }

    fn at(path: &Path) -> Option<(u64, u64)> {
        fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.is.is_some() && File::at(&self.path) == self.is {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Socket {
    pub async fn tcp(addresses: &[SocketAddr], tls: Option<TlsAcceptor>) -> io::Result<Socket> {
        Ok(Socket { kind: Kind::Tcp(TcpListener::bind(addresses).await?), tls })
    }

    /// A stale socket file of this name is replaced; anything else is left alone.
    pub async fn unix(path: &Path) -> io::Result<Socket> {
        let found = fs::symlink_metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.file_type().is_socket()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "what has this name is no socket"));
        }
        if found.is_some() && UnixStream::connect(path).await.is_err_and(|error| error.kind() == refused()) {
            fs::remove_file(path)?;
        }
        Ok(Socket { kind: Kind::Unix(UnixListener::bind(path)?, File::of(path)), tls: None })
    }

    pub fn address(&self) -> io::Result<Address> {
        match &self.kind {
            Kind::Tcp(listener) => Ok(Address::Tcp { at: listener.local_addr()?, tls: self.tls.is_some() }),
            Kind::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
        }
    }

    pub async fn accept(&self) -> io::Result<NewConnection> {
        let stream = match &self.kind {
            Kind::Tcp(listener) => Stream::Tcp(listener.accept().await?.0),
            Kind::Unix(listener, _) => Stream::Unix(listener.accept().await?.0),
        };
        Ok(NewConnection { stream, tls: self.tls.clone() })
    }
}

fn refused() -> io::ErrorKind {
    io::ErrorKind::ConnectionRefused
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection that was accepted and not yet spoken on.
pub struct NewConnection {
    stream: Stream,
    tls: Option<TlsAcceptor>,
}

impl NewConnection {
    /// Sets options and shakes hands; `patience` bounds the latter, and a write without progress `write_timeout`.
    pub async fn peer(self, patience: Duration, write_timeout: Duration) -> io::Result<Peer> {
        let socket = match self.stream {
            Stream::Unix(socket) => return Ok(Peer::Unix(socket)),
            Stream::Tcp(socket) => socket,
        };
        set_options(&socket, write_timeout);
        match self.tls {
            None => Ok(Peer::Tcp(socket)),
            Some(tls) => Ok(Peer::Tls(Box::new(tokio::time::timeout(patience, tls.accept(socket)).await??))),
        }
    }
}

/// Small events must leave at once, and a peer that is gone must be noticed.
fn set_options(socket: &TcpStream, write_timeout: Duration) {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    let socket = SockRef::from(socket);
    let set = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        .and_then(|()| socket.set_tcp_user_timeout(Some(write_timeout)));
    if let Err(error) = set {
        tracing::debug!(kind = ?error.kind(), "a socket option could not be set");
    }
}

/// Who is at the other end.
pub enum Peer {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// The same call to whichever it is.
macro_rules! with_stream {
    ($peer:expr, $stream:ident => $call:expr) => {
        match $peer.get_mut() {
            Peer::Tcp($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Peer::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
            Peer::Unix($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
        }
    };
}

impl AsyncRead for Peer {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Peer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Peer::Tcp(stream) => stream.is_write_vectored(),
            Peer::Tls(stream) => stream.is_write_vectored(),
            Peer::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_files_the_wrong_one_is_named_in_words() {
        let good = include_str!("../../bench/src/load/tests/localhost.pem");
        let cut = &good[..good.find("-----END").unwrap()];
        let garbage = "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n";
        let no_key = garbage.replace("CERTIFICATE", "PRIVATE KEY");
        let no_base64 = "-----BEGIN CERTIFICATE-----\n%%%%\n-----END CERTIFICATE-----\n";
        for (certificates, key, file, told) in [
            (good, good, "", ""),
            (cut, good, "certificates", "it is cut off"),
            (garbage, good, "certificates", "its first certificate is none that can be read"),
            (no_base64, good, "certificates", "not base64"),
            ("", good, "certificates", "it has no certificate"),
            (good, cut, "key", "it is cut off"),
            (good, garbage, "key", "it has no private key"),
            (good, &no_key, "key", "its private key is none that can be read"),
        ] {
            let files = [("certificates", certificates.as_bytes()), ("key", key.as_bytes())];
            let place = testing::Scratch::with("tls", &files);
            let names = TlsFiles { certificates: place.join("certificates"), key: place.join("key") };
            let problem = acceptor(&names).err().map(|bad| (bad.file, bad.problem));
            let wanted = (!file.is_empty()).then(|| place.join(file));
            assert_eq!(problem.as_ref().map(|(file, _)| file), wanted.as_ref(), "{problem:?}");
            assert!(problem.is_none_or(|(_, problem)| problem.contains(told) && !problem.contains('[')), "{told}");
        }
    }

    #[test]
    fn what_is_no_socket_is_left_alone_and_told() {
        let place = testing::Scratch::with("uds", &[("file", &b"kept"[..])]);
        std::os::unix::fs::symlink(place.join("nowhere"), place.join("link")).unwrap();
        fs::create_dir(place.join("folder")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for name in ["file", "link", "folder"] {
            let error = runtime.block_on(Socket::unix(&place.join(name))).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), Some("what has this name is no socket"), "{name}");
        }
        assert_eq!(fs::read(place.join("file")).unwrap(), b"kept");
    }
}
