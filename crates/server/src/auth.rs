//! Who may ask. Keys are compared as SHA-256 digests, all of them, in constant time: neither the time nor the answer
//! says how close a guess came. The digest doubles as the tenant's name, so that no key is kept in memory as text.

use axum::http::{HeaderMap, HeaderName, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The digest of an API key: the tenant whose prefix-cache blocks a request may share.
pub(crate) type Tenant = [u8; 32];

/// A key and what it may.
#[derive(Clone)]
pub struct ApiKey {
    /// The key, as clients send it.
    pub key: String,
    /// Its requests may ask for a class above the usual one. Whoever holds the only key may in any case: there is
    /// nobody to press ahead of.
    pub may_be_urgent: bool,
}

impl From<&str> for ApiKey {
    /// A key that may what all may.
    fn from(key: &str) -> ApiKey {
        ApiKey { key: key.to_string(), may_be_urgent: false }
    }
}

impl std::fmt::Debug for ApiKey {
    /// Everything but the key, which is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKey").field("may_be_urgent", &self.may_be_urgent).finish_non_exhaustive()
    }
}

/// The keys that are accepted. None at all: everybody may ask.
pub(crate) struct ApiKeys(Vec<Known>);

struct Known {
    tenant: Tenant,
    may_be_urgent: bool,
}

impl ApiKeys {
    pub(crate) fn new(keys: &[ApiKey]) -> ApiKeys {
        let known = |key: &ApiKey| Known {
            tenant: digest(key.key.as_bytes()),
            may_be_urgent: key.may_be_urgent || keys.len() == 1,
        };
        ApiKeys(keys.iter().map(known).collect())
    }

    /// Whether requests of `tenant`, which has passed [`tenant`](Self::tenant), may ask for a class above the usual
    /// one.
    pub(crate) fn may_be_urgent(&self, tenant: Option<&Tenant>) -> bool {
        tenant.is_none_or(|tenant| self.0.iter().any(|known| known.tenant == *tenant && known.may_be_urgent))
    }

    /// Whether any is asked for.
    pub(crate) fn are_wanted(&self) -> bool {
        !self.0.is_empty()
    }

    /// The number of `tenant`'s key in the order in which keys were given, counted from 1: it names a key and does not
    /// show it.
    pub(crate) fn number(&self, tenant: Option<&Tenant>) -> Option<usize> {
        let tenant = tenant?;
        self.0.iter().position(|known| known.tenant == *tenant).map(|at| at + 1)
    }

    /// Whose request this is: `Ok(None)` where no keys are asked for, `Err` for a missing or wrong one.
    pub(crate) fn tenant(&self, headers: &HeaderMap) -> Result<Option<Tenant>, WrongKey> {
        if self.0.is_empty() {
            return Ok(None);
        }
        // Nothing offered takes the same path as a wrong key.
        let brought = digest(offered(headers).unwrap_or_default());
        let mut known = Choice::from(0);
        for key in &self.0 {
            known |= key.tenant.ct_eq(&brought);
        }
        if bool::from(known) { Ok(Some(brought)) } else { Err(WrongKey) }
    }
}

/// What whoever started the server was given to hold the engine with: one secret of one start.
pub(crate) struct HoldToken(Tenant);

/// The header that brings it. A header of our own, so that no form and no picture of another site can send one.
pub(crate) const HOLD_TOKEN: HeaderName = HeaderName::from_static("x-hold-token");

impl HoldToken {
    pub(crate) fn new(token: &str) -> HoldToken {
        HoldToken(digest(token.as_bytes()))
    }

    /// Whether the request brings it. In constant time, like keys.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(HOLD_TOKEN).iter();
        let offered = values.next().map_or(&b""[..], |value| value.as_bytes());
        values.next().is_none() && bool::from(self.0.ct_eq(&digest(offered)))
    }
}

/// No key, or one that is not accepted.
#[derive(Debug)]
pub(crate) struct WrongKey;

fn digest(key: &[u8]) -> Tenant {
    Sha256::digest(key).into()
}

/// The header that brings a key as it is, Anthropic's way.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The key that a request brings, in either way; in both, the first counts.
fn offered(headers: &HeaderMap) -> Option<&[u8]> {
    bearer(headers).or_else(|| {
        let mut values = headers.get_all(API_KEY).iter();
        let key = values.next()?.as_bytes();
        values.next().is_none().then(|| key.trim_ascii())
    })
}

/// The credential of `Authorization: Bearer <key>`; a request with several such headers has none.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())).collect()
    }

    #[test]
    fn one_token_holds_and_nothing_like_it() {
        let token = HoldToken::new("0123abcd");
        let brought = |values: &[&str]| {
            let headers: HeaderMap = values.iter().map(|value| (HOLD_TOKEN, value.parse().unwrap())).collect();
            token.is_in(&headers)
        };
        assert!(brought(&["0123abcd"]));
        for wrong in [&[][..], &[""], &["0123abc"], &["0123abcde"], &["0123ABCD"], &["0123abcd", "0123abcd"]] {
            assert!(!brought(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn only_a_known_key_passes_and_each_is_its_own_tenant() {
        let keys = ApiKeys::new(&["alpha".into(), "beta".into()]);
        for refused in [
            &[][..],
            &["Bearer"],
            &["Bearer "],
            &["Bearer alph"],
            &["Bearer alphaa"],
            &["Basic alpha"],
            &["alpha"],
            &["Bearer alpha", "Bearer alpha"],
            &["Bearer ALPHA"],
            &["Bearer alpha beta"],
        ] {
            assert!(keys.tenant(&headers(refused)).is_err(), "{refused:?}");
        }
        let alpha = keys.tenant(&headers(&["Bearer alpha"])).unwrap();
        let beta = keys.tenant(&headers(&["bearer  beta "])).unwrap();
        assert!(alpha.is_some() && beta.is_some() && alpha != beta);
        assert_eq!([alpha, beta, None].map(|tenant| keys.number(tenant.as_ref())), [Some(1), Some(2), None]);
        assert!(!keys.may_be_urgent(alpha.as_ref()) && keys.may_be_urgent(None));
        let keys = ApiKeys::new(&[ApiKey { may_be_urgent: true, ..ApiKey::from("alpha") }, "beta".into()]);
        assert!(keys.may_be_urgent(alpha.as_ref()) && !keys.may_be_urgent(beta.as_ref()));
        assert!(ApiKeys::new(&["beta".into()]).may_be_urgent(beta.as_ref()), "who is alone may");
        let both = |key: &str, bearer: Option<&str>| {
            let mut both: HeaderMap = headers(bearer.as_slice());
            both.insert(API_KEY, key.parse().unwrap());
            both
        };
        assert_eq!(keys.tenant(&both("alpha", None)).unwrap(), alpha, "Anthropic's header brings the same key");
        assert_eq!(keys.tenant(&both("alpha", Some("Basic proxy"))).unwrap(), alpha);
        assert_eq!(keys.tenant(&both("alpha", Some("Bearer beta"))).unwrap(), beta, "of two the bearer's counts");
        assert!(keys.tenant(&both("Bearer alpha", None)).is_err());
        let mut twice = both("alpha", None);
        twice.append(API_KEY, "alpha".parse().unwrap());
        assert!(keys.tenant(&twice).is_err());
        assert_eq!(ApiKeys::new(&[]).tenant(&headers(&["Bearer anything"])).unwrap(), None);
    }
}
