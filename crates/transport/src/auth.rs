//! Who may ask, and for what. Keys are looked up by their SHA-256 digests: how long that takes tells something of digests,
//! and nothing of a key that has another. The digest doubles as the tenant's name, so that no key is kept in memory as text.

use std::collections::HashMap;

use axum::http::{HeaderMap, HeaderName, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::ApiError;

pub use telemetry::timeline::Tenant;

/// A tenant in hexadecimal digits, as files have it.
pub fn hex(tenant: &Tenant) -> String {
    tenant.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The tenant of these digits; `None`: they are none.
pub fn of_hex(digits: &str) -> Option<Tenant> {
    let mut tenant = [0; 32];
    for (at, byte) in tenant.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(tenant)
}

/// A key and what it may beyond the usual. The only key has every right: there is no other to press ahead of,
/// and none whose answers an adapter could change.
#[derive(Clone)]
pub struct ApiKey {
    /// The key, as clients send it.
    pub key: String,
    /// Its requests may ask for a class above the usual one.
    pub may_be_urgent: bool,
    /// It may load adapters, and unload those that requests have loaded.
    pub may_change_adapters: bool,
    /// It may change whose requests this worker takes.
    pub may_change_role: bool,
    /// It may download, unload and remove models.
    pub may_change_models: bool,
}

impl From<&str> for ApiKey {
    /// A key that may what all may.
    fn from(key: &str) -> ApiKey {
        ApiKey {
            key: key.to_string(),
            may_be_urgent: false,
            may_change_adapters: false,
            may_change_role: false,
            may_change_models: false,
        }
    }
}

impl std::fmt::Debug for ApiKey {
    /// Everything but the key, which is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKey")
            .field("may_be_urgent", &self.may_be_urgent)
            .field("may_change_adapters", &self.may_change_adapters)
            .field("may_change_role", &self.may_change_role)
            .field("may_change_models", &self.may_change_models)
            .finish_non_exhaustive()
    }
}

/// What not every key may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    Urgency,
    Adapters,
    Role,
    Models,
}

impl Right {
    /// Its word in a key file.
    fn word(self) -> &'static str {
        match self {
            Right::Urgency => "priority",
            Right::Adapters => "adapters",
            Right::Role => "role",
            Right::Models => "models",
        }
    }
}

/// The keys that are accepted. Empty: no authentication.
pub struct ApiKeys(HashMap<Tenant, Known>);

struct Known {
    number: usize,
    rights: Vec<Right>,
}

impl ApiKeys {
    pub fn new(keys: &[ApiKey]) -> ApiKeys {
        let mut known = HashMap::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            let rights = [
                (Right::Urgency, key.may_be_urgent),
                (Right::Adapters, key.may_change_adapters),
                (Right::Role, key.may_change_role),
                (Right::Models, key.may_change_models),
            ];
            let rights = rights.into_iter().filter(|(_, has)| *has || keys.len() == 1).map(|(right, _)| right);
            // One that is given twice may what either may.
            let entry = known.entry(digest(key.key.as_bytes()));
            entry.or_insert(Known { number: at + 1, rights: Vec::new() }).rights.extend(rights);
        }
        ApiKeys(known)
    }

    /// Whether `tenant`, which has passed [`tenant`](Self::tenant), may do what not all may.
    pub fn may(&self, right: Right, tenant: Option<&Tenant>) -> bool {
        tenant.is_none_or(|tenant| self.0.get(tenant).is_some_and(|known| known.rights.contains(&right)))
    }

    /// 403 for who may not.
    pub fn check(&self, right: Right, tenant: Option<&Tenant>) -> Result<(), ApiError> {
        if self.may(right, tenant) {
            return Ok(());
        }
        let word = right.word();
        let message = format!("This API key may not do that: the word `{word}` after it in --api-key-file allows it.");
        Err(ApiError::forbidden("key_may_not", message))
    }

    /// Whether there are several, so that what one changes is another's too.
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether any is asked for.
    pub fn are_wanted(&self) -> bool {
        !self.0.is_empty()
    }

    /// The number of `tenant`'s key in the order in which keys were given, counted from 1: it names a key and does not
    /// show it.
    pub fn number(&self, tenant: Option<&Tenant>) -> Option<usize> {
        self.0.get(tenant?).map(|known| known.number)
    }

    /// Whose request this is: `Ok(None)` where no keys are asked for, `Err` for a missing or wrong one.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Option<Tenant>, WrongKey> {
        if self.0.is_empty() {
            return Ok(None);
        }
        // Nothing offered takes the same path as a wrong key.
        let brought = digest(offered(headers).unwrap_or_default());
        if self.0.contains_key(&brought) { Ok(Some(brought)) } else { Err(WrongKey) }
    }
}

/// The token that allows pausing the engine: one secret of one start.
pub struct HoldToken(Tenant);

/// The header that brings it. A header of our own, so that no form and no picture of another site can send one.
pub const HOLD_TOKEN: HeaderName = HeaderName::from_static("x-hold-token");

impl HoldToken {
    pub fn new(token: &str) -> HoldToken {
        HoldToken(digest(token.as_bytes()))
    }

    /// Whether the request brings it. In constant time, like keys.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(HOLD_TOKEN).iter();
        let offered = values.next().map_or(&b""[..], |value| value.as_bytes());
        values.next().is_none() && bool::from(self.0.ct_eq(&digest(offered)))
    }
}

/// No key, or one that is not accepted.
#[derive(Debug)]
pub struct WrongKey;

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
        assert!(!keys.may(Right::Urgency, alpha.as_ref()) && keys.may(Right::Urgency, None));
        let keys = ApiKeys::new(&[ApiKey { may_be_urgent: true, ..ApiKey::from("alpha") }, "beta".into()]);
        assert!(keys.may(Right::Urgency, alpha.as_ref()) && !keys.may(Right::Urgency, beta.as_ref()));
        for right in [Right::Adapters, Right::Role, Right::Models] {
            assert!(keys.check(right, alpha.as_ref()).is_err(), "one right is not another: {right:?}");
            assert!(ApiKeys::new(&["beta".into()]).may(right, beta.as_ref()), "who is alone may: {right:?}");
        }
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
