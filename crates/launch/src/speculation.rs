//! `--speculative-config`: vLLM's keys for speculative decoding, where they mean here what they mean there.
//!
//! ```text
//! {"method": "suffix", "num_speculative_tokens": 8} ──> Speculation: what drafts, within which bounds
//! ```
//! A key that would change answers there, or that there is nothing for here, is refused by its name: a configuration
//! that is taken is kept in full.

use engine::{DraftMethod, Drafters, LearnedDrafter, LookupOptions, Speculation, WeightClass};
use serde_json::{Map, Value};

/// Keys of vLLM's that are refused, and why.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["rejection_sample_method", "synthetic_acceptance_rates", "synthetic_acceptance_length"],
        "a draft is accepted if it is the token that is drawn in its place, and by no other rule: answers do not change",
    ),
    (
        &["draft_sample_method"],
        "a drafter draws as the request does, with the same noise, so that both mostly draw the same",
    ),
    (
        &["num_speculative_tokens_per_batch_size", "enable_adaptive_verification"],
        "how many drafts are checked is decided for each step, by what rows cost and how often drafts are accepted",
    ),
    (
        &["draft_tensor_parallel_size", "tensor_parallel_size", "use_local_argmax_reduction"],
        "one process computes on all cores",
    ),
    (
        &["enforce_eager", "moe_backend", "attention_backend", "disable_padded_drafter_batch"],
        "kernels are chosen by the machine, and nothing is compiled at run time",
    ),
    (&["kv_cache_dtype"], "--kv-dtype holds for a drafter too"),
    (&["max_model_len"], "a drafter reads as far as the model"),
    (&["revision", "code_revision", "draft_load_config"], "a drafter is named and read as the model is"),
    (&["disable_eagle_block_drop"], "no block is dropped"),
    (&["use_heterogeneous_vocab"], "a drafter has the model's vocabulary"),
    (&["parallel_drafting", "dspark_draft_topk", "index_share_for_mtp_iteration"], "there is no drafter of this kind"),
];

/// What a value of `--speculative-config` asks for, or what is wrong with it.
pub fn speculation(json: &str) -> Result<Speculation, String> {
    let keys = match serde_json::from_str(json) {
        Ok(Value::Object(map)) => map,
        Ok(_) => return Err("not a JSON object, such as {\"method\": \"suffix\"}".to_owned()),
        Err(error) => return Err(format!("not JSON: {error}")),
    };
    let mut keys = Keys(keys);
    let method = keys.text("method")?.ok_or_else(|| format!("method: missing; {}", methods()))?;
    let max_drafts = keys.count("num_speculative_tokens", 1, Drafters::MAX_DRAFTS)?;
    let mut drafters = Drafters::default();
    drafters.max_drafts = max_drafts.unwrap_or(drafters.max_drafts);
    match (method.as_str(), DraftMethod::ALL.into_iter().find(|known| known.name() == method)) {
        ("ngram", _) => drafters.lookup = Some(ngram(&mut keys)?),
        ("suffix", _) => drafters.lookup = Some(suffix(&mut keys)?),
        (_, Some(method)) => drafters.learned = Some(learned(method, &mut keys)?),
        ("eagle", _) => return Err(format!("method: EAGLE-1 and EAGLE-2 heads are not supported; {}", methods())),
        _ => return Err(format!("method: {method:?} is not known; {}", methods())),
    }
    keys.finish(&method)?;
    Ok(Speculation::By(drafters))
}

fn methods() -> String {
    let learned = DraftMethod::ALL.map(DraftMethod::name).join(", ");
    format!("one of ngram, suffix, {learned}")
}

/// Prompt and answer of the request itself. vLLM's two bounds are equal where one is given.
fn ngram(keys: &mut Keys) -> Result<LookupOptions, String> {
    let options = LookupOptions { most_answers: 0, ..LookupOptions::default() };
    let least = keys.count("prompt_lookup_min", 1, LookupOptions::MOST_MATCH)?;
    let most = keys.count("prompt_lookup_max", 1, LookupOptions::MOST_MATCH)?;
    let (least_match, most_match) = match (least, most) {
        (None, None) => (options.least_match, options.most_match),
        (Some(one), None) | (None, Some(one)) => (one, one),
        (Some(least), Some(most)) => (least, most),
    };
    if least_match > most_match {
        return Err(format!("prompt_lookup_min: {least_match} is more than prompt_lookup_max, {most_match}"));
    }
    Ok(LookupOptions { least_match, most_match, ..options })
}

/// Earlier answers too. Where vLLM has a bound by default, here there is none: the scheduler learns what holds.
fn suffix(keys: &mut Keys) -> Result<LookupOptions, String> {
    let options = LookupOptions::default();
    let depth = keys.count("suffix_decoding_max_tree_depth", options.least_match + 1, LookupOptions::MOST_DEPTH)?;
    let answers = keys.count("suffix_decoding_max_cached_requests", 0, LookupOptions::MOST_ANSWERS)?;
    let factor = keys.number("suffix_decoding_max_spec_factor", 1e3)?;
    let share = keys.number("suffix_decoding_min_token_prob", 1.0)?;
    Ok(LookupOptions {
        most_depth: depth.unwrap_or(options.most_depth),
        most_answers: answers.unwrap_or(options.most_answers),
        drafts_per_match: factor.unwrap_or(options.drafts_per_match),
        least_share: share.unwrap_or(options.least_share),
        ..options
    })
}

fn learned(method: DraftMethod, keys: &mut Keys) -> Result<LearnedDrafter, String> {
    let model = keys.text("model")?;
    if model.is_none() && method != DraftMethod::Mtp {
        return Err(format!("model: missing; {} needs the files of the drafter", method.name()));
    }
    let classes = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4];
    let class = |name: String| {
        let found = classes.into_iter().find(|class| class.name() == name);
        found.ok_or_else(|| format!("quantization: {name:?} is none of {}", classes.map(WeightClass::name).join(", ")))
    };
    // Heads and layers are small, and bf16.
    let weights = match method {
        DraftMethod::DraftModel => keys.text("quantization")?.map(class).transpose()?,
        _ => None,
    };
    Ok(LearnedDrafter { method, model, weights })
}

/// What has not been read yet. A key that is null is absent, as it is in vLLM.
struct Keys(Map<String, Value>);

impl Keys {
    fn take(&mut self, key: &str) -> Option<Value> {
        self.0.shift_remove(key).filter(|value| !value.is_null())
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{key}: not a text")),
        }
    }

    fn count(&mut self, key: &str, least: usize, most: usize) -> Result<Option<usize>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| (least..=most).contains(count));
        count.map(Some).ok_or_else(|| format!("{key}: not a whole number from {least} to {most}"))
    }

    fn number(&mut self, key: &str, most: f64) -> Result<Option<f64>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (0.0..=most).contains(number));
        number.map(Some).ok_or_else(|| format!("{key}: not a number from 0 to {most}"))
    }

    /// Nothing may be left.
    fn finish(mut self, method: &str) -> Result<(), String> {
        self.0.retain(|_, value| !value.is_null());
        let Some((key, _)) = self.0.iter().next() else { return Ok(()) };
        if let Some((_, why)) = REFUSED.iter().find(|(keys, _)| keys.contains(&key.as_str())) {
            return Err(format!("{key}: refused; {why}"));
        }
        let of = |prefix: &str| key.starts_with(prefix);
        match (of("prompt_lookup_m"), of("suffix_decoding_max_") || of("suffix_decoding_min_")) {
            _ if ["model", "quantization"].contains(&key.as_str()) && ["ngram", "suffix"].contains(&method) => {
                Err(format!("{key}: {method} drafts from texts and has no model"))
            }
            _ if key == "quantization" => Err(format!("{key}: refused; what {method} computes is small, and bf16")),
            (true, _) => Err(format!("{key}: belongs to the method ngram, not to {method}")),
            (_, true) => Err(format!("{key}: belongs to the method suffix, not to {method}")),
            _ => Err(format!("{key:?}: not a known key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafters(json: &str) -> Drafters {
        match speculation(json) {
            Ok(Speculation::By(drafters)) => drafters,
            other => panic!("{json}: {other:?}"),
        }
    }

    #[test]
    fn what_is_asked_for_is_kept_in_full() {
        let lookup = |options| Drafters { lookup: Some(options), ..Drafters::default() };
        let ngram = LookupOptions { most_answers: 0, ..LookupOptions::default() };
        let suffix = LookupOptions::default();
        let matches = |least_match, most_match| lookup(LookupOptions { least_match, most_match, ..ngram.clone() });
        let table = [
            (r#"{"method": "ngram"}"#, lookup(ngram.clone())),
            (r#"{"method": "suffix", "model": null}"#, Drafters::default()),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 4}"#,
                Drafters { max_drafts: 4, ..lookup(ngram.clone()) },
            ),
            (r#"{"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}"#, matches(2, 5)),
            (r#"{"method": "ngram", "prompt_lookup_max": 4}"#, matches(4, 4)),
            (r#"{"method": "ngram", "prompt_lookup_min": 6}"#, matches(6, 6)),
            (
                r#"{"method": "suffix", "suffix_decoding_max_tree_depth": 24, "suffix_decoding_max_cached_requests": 0,
                    "suffix_decoding_max_spec_factor": 1, "suffix_decoding_min_token_prob": 0.1}"#,
                lookup(LookupOptions {
                    most_depth: 24,
                    most_answers: 0,
                    drafts_per_match: 1.0,
                    least_share: 0.1,
                    ..suffix
                }),
            ),
        ];
        for (json, wanted) in table {
            assert_eq!(drafters(json), wanted, "{json}");
        }
        for method in DraftMethod::ALL {
            let json = format!(r#"{{"method": {:?}, "model": "a/b"}}"#, method.name());
            let wanted = LearnedDrafter { method, model: Some("a/b".to_owned()), weights: None };
            assert_eq!(drafters(&json).learned, Some(wanted), "{json}");
        }
        let (method, model) = (DraftMethod::DraftModel, Some("a/b".to_owned()));
        let int8 = LearnedDrafter { method, model, weights: Some(WeightClass::Int8) };
        let json = r#"{"method": "draft_model", "model": "a/b", "quantization": "int8"}"#;
        assert_eq!(drafters(json).learned, Some(int8));
        let own = LearnedDrafter { method: DraftMethod::Mtp, model: None, weights: None };
        assert_eq!(drafters(r#"{"method": "mtp"}"#).learned, Some(own));
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name() {
        // A value, and how its error begins.
        let table = [
            ("", "not JSON: "),
            ("{\"method\": \"ngram\"", "not JSON: "),
            ("[]", "not a JSON object"),
            ("\"ngram\"", "not a JSON object"),
            ("{}", "method: missing; one of ngram, suffix, draft_model, medusa, eagle3, mtp"),
            (r#"{"method": null}"#, "method: missing"),
            (r#"{"method": 7}"#, "method: not a text"),
            (r#"{"method": "dflash"}"#, "method: \"dflash\" is not known; one of ngram"),
            (
                r#"{"method": "eagle", "model": "x"}"#,
                "method: EAGLE-1 and EAGLE-2 heads are not supported; one of ngram",
            ),
            (r#"{"method": "medusa"}"#, "model: missing; medusa needs"),
            (r#"{"method": "medusa", "model": 1}"#, "model: not a text"),
            (r#"{"method": "ngram", "model": "x"}"#, "model: ngram drafts from texts"),
            (r#"{"method": "suffix", "quantization": "int8"}"#, "quantization: suffix drafts from texts"),
            (
                r#"{"method": "eagle3", "model": "x", "quantization": "int8"}"#,
                "quantization: refused; what eagle3 computes",
            ),
            (
                r#"{"method": "draft_model", "model": "x", "quantization": "fp8"}"#,
                "quantization: \"fp8\" is none of bf16",
            ),
            (r#"{"method": "ngram", "num_speculative_tokens": 0}"#, "num_speculative_tokens: not a whole number"),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 33}"#,
                "num_speculative_tokens: not a whole number from 1 to 32",
            ),
            (r#"{"method": "ngram", "num_speculative_tokens": 4.0}"#, "num_speculative_tokens: not a whole number"),
            (r#"{"method": "ngram", "num_speculative_tokens": true}"#, "num_speculative_tokens: not a whole number"),
            (r#"{"method": "ngram", "prompt_lookup_min": 0}"#, "prompt_lookup_min: not a whole number from 1 to 32"),
            (
                r#"{"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}"#,
                "prompt_lookup_min: 5 is more than prompt_lookup_max, 4",
            ),
            (r#"{"method": "suffix", "prompt_lookup_min": 5}"#, "prompt_lookup_min: belongs to the method ngram"),
            (
                r#"{"method": "ngram", "suffix_decoding_max_cached_requests": 5}"#,
                "suffix_decoding_max_cached_requests: belongs to the method suffix",
            ),
            (r#"{"method": "suffix", "suffix_decoding_max_tree_depth": 3}"#, "suffix_decoding_max_tree_depth: not a"),
            (
                r#"{"method": "suffix", "suffix_decoding_max_cached_requests": -1}"#,
                "suffix_decoding_max_cached_requests: not a whole number from 0",
            ),
            (
                r#"{"method": "suffix", "suffix_decoding_max_spec_factor": -0.5}"#,
                "suffix_decoding_max_spec_factor: not",
            ),
            (r#"{"method": "suffix", "suffix_decoding_min_token_prob": 1.5}"#, "suffix_decoding_min_token_prob: not a"),
            (r#"{"method": "suffix", "suffix_decoding_min_token_prob": "1"}"#, "suffix_decoding_min_token_prob: not a"),
            (r#"{"method": "ngram", "ngram": 3}"#, "\"ngram\": not a known key"),
            (r#"{"method": "ngram", "prompt_lookup": 3}"#, "\"prompt_lookup\": not a known key"),
        ];
        for (json, begins) in table {
            let error = speculation(json).expect_err(json);
            assert!(error.starts_with(begins), "{json}: {error}");
        }
        for key in REFUSED.iter().flat_map(|(keys, _)| *keys) {
            let error = speculation(&format!(r#"{{"method": "ngram", "{key}": 1}}"#)).expect_err(key);
            assert!(error.starts_with(&format!("{key}: refused; ")), "{error}");
            assert_eq!(speculation(&format!(r#"{{"method": "suffix", "{key}": null}}"#)), Ok(Speculation::auto()));
        }
    }
}
