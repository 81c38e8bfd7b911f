//! The variables that say where models are and what may be fetched: those of `huggingface_hub` in Python, and the
//! cache's.

use std::path::PathBuf;

use hub::HubEnv;

/// What the environment says about models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// Where hub models are kept, and how the hub is asked.
    pub hub: HubEnv,
    /// Where packed weights are kept; `None` where there is not even a home directory.
    pub packed_cache: Option<PathBuf>,
}

impl Variables {
    /// From variables by name, none of them empty, and the home directory.
    pub fn read(get: impl Fn(&str) -> Option<String>, home: Option<PathBuf>) -> Variables {
        let cache = get("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".cache")));
        Variables { hub: hub_of(&get, home), packed_cache: cache.map(|cache| cache.join("twostroke/packed")) }
    }

    /// Where the hub's models are kept; `None` where there is not even a home directory.
    pub fn hub_cache(&self) -> Option<PathBuf> {
        let HubEnv { hub_cache, hf_home, .. } = &self.hub;
        hub_cache.clone().or_else(|| Some(hf_home.as_ref()?.join("hub")))
    }
}

/// The Hugging Face variables, as `huggingface_hub` in Python understands them.
fn hub_of(get: impl Fn(&str) -> Option<String>, home: Option<PathBuf>) -> HubEnv {
    let first = |names: &[&str]| names.iter().find_map(|name| get(name));
    let path = |names: &[&str]| {
        let path = PathBuf::from(first(names)?);
        // A shell has replaced the tilde; a service's configuration file has not.
        Some(match (path.strip_prefix("~"), &home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path,
        })
    };
    let cache = path(&["XDG_CACHE_HOME"]).or_else(|| Some(home.as_ref()?.join(".cache")));
    HubEnv {
        hf_home: path(&["HF_HOME"]).or_else(|| Some(cache?.join("huggingface"))),
        hub_cache: path(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]),
        token: first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]),
        offline: first(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]).is_some_and(|value| is_true(&value)),
        endpoint: get("HF_ENDPOINT"),
    }
}

/// As Python's booleans in variables are written.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hubs_variables_mean_what_they_mean_in_python() {
        let hub = |set: &[(&str, &str)]| {
            let get = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
            hub_of(get, Some(PathBuf::from("/h")))
        };
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(hub(&[]), HubEnv { hf_home: path("/h/.cache/huggingface"), ..HubEnv::default() });
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x")]).hf_home, path("/x/huggingface"));
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")]).hf_home, path("/h/hf"));
        assert_eq!(hub(&[("HUGGINGFACE_HUB_CACHE", "/old")]).hub_cache, path("/old"));
        assert_eq!(hub(&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")]).hub_cache, path("/new"));
        for (value, offline) in [("1", true), ("ON", true), ("Yes", true), ("true", true), ("0", false), ("no", false)]
        {
            assert_eq!(hub(&[("HF_HUB_OFFLINE", value)]).offline, offline, "{value}");
            assert_eq!(hub(&[("TRANSFORMERS_OFFLINE", value)]).offline, offline, "{value}");
        }
        let given = hub(&[("HF_TOKEN", "secret"), ("HF_ENDPOINT", "http://localhost")]);
        assert_eq!((given.token.as_deref(), given.endpoint.as_deref()), (Some("secret"), Some("http://localhost")));
    }

    #[test]
    fn packed_weights_lie_in_the_users_cache() {
        let read = |cache: Option<&str>, home: Option<&str>| {
            let get = |name: &str| cache.filter(|_| name == "XDG_CACHE_HOME").map(str::to_owned);
            Variables::read(get, home.map(PathBuf::from))
        };
        let packed = |cache, home| read(cache, home).packed_cache;
        assert_eq!(packed(None, Some("/h")), Some(PathBuf::from("/h/.cache/twostroke/packed")));
        assert_eq!(packed(Some("/x"), Some("/h")), Some(PathBuf::from("/x/twostroke/packed")));
        assert_eq!((packed(None, None), read(None, None).hub_cache()), (None, None));
        assert_eq!(read(None, Some("/h")).hub_cache(), Some(PathBuf::from("/h/.cache/huggingface/hub")));
    }
}
