//! Worker addresses in requests, and their seals.
//!
//! A router in front of several workers sends a prompt to one of them, and then the request with its reply to another:
//! the address of the blocks. The address passes through the client, which is not trusted: it could make a server
//! connect anywhere. So the address has a seal that takes the cluster key to make.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use super::ClusterKey;

/// Where a worker gives what it has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedAddress {
    /// Its name or address, as others reach it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Hexadecimal.
    pub seal: String,
}

impl SignedAddress {
    /// Of a worker that listens there.
    pub(crate) fn of(bound: SocketAddr, key: &ClusterKey) -> SignedAddress {
        let host = if bound.ip().is_unspecified() { outward(bound.ip()) } else { bound.ip() };
        let (host, port) = (host.to_string(), bound.port());
        let seal = seal_of(&host, port, key).to_hex().to_string();
        SignedAddress { host, port, seal }
    }

    /// Where to connect to, if the seal was made with the key.
    pub(crate) fn address(&self, key: &ClusterKey) -> Option<String> {
        let theirs = blake3::Hash::from_hex(&self.seal).ok()?;
        // Comparing hashes takes the same time wherever they differ.
        (theirs == seal_of(&self.host, self.port, key)).then(|| match self.host.parse() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        })
    }
}

fn seal_of(host: &str, port: u16, key: &ClusterKey) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&key.derive("address of a prefill worker"));
    hasher.update(&port.to_le_bytes()).update(host.as_bytes());
    hasher.finalize()
}

/// The address from which this machine reaches others. No packet is sent.
fn outward(all: IpAddr) -> IpAddr {
    let (any, other, own): (_, _, IpAddr) = match all {
        IpAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9", [127, 0, 0, 1].into()),
        IpAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9", std::net::Ipv6Addr::LOCALHOST.into()),
    };
    let route = UdpSocket::bind(any).and_then(|socket| socket.connect(other).and_then(|()| socket.local_addr()));
    route.map_or(own, |route| route.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_address_takes_the_key() {
        let key = ClusterKey::of(b"sixteen bytes or more");
        let of = |at: &str| SignedAddress::of(at.parse().expect("an address"), &key);
        assert_eq!(of("127.0.0.1:9000").address(&key).as_deref(), Some("127.0.0.1:9000"));
        assert_eq!(of("[::1]:9000").address(&key).as_deref(), Some("[::1]:9000"));
        let good = of("10.0.0.7:9000");
        let cases = [
            SignedAddress { host: "10.0.0.8".into(), ..good.clone() },
            SignedAddress { port: 9001, ..good.clone() },
            SignedAddress { seal: String::new(), ..good.clone() },
            SignedAddress { seal: "0".repeat(64), ..good.clone() },
        ];
        for other in cases {
            assert_eq!(other.address(&key), None, "{other:?}");
        }
        assert_eq!(good.address(&ClusterKey::of(b"another key of that size")), None);
    }

    #[test]
    fn who_listens_everywhere_is_somewhere() {
        let address = SignedAddress::of("0.0.0.0:9000".parse().expect("an address"), &ClusterKey::of(b"key"));
        assert!(!address.host.parse::<IpAddr>().expect("an address").is_unspecified());
    }
}
