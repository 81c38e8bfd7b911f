//! What a configuration means: both spellings, every family's defaults, and the refusals of what is not computed.
//! (Malformed values are in `bad_files.rs`.)

use kernels::RopeScaling;
use model::config::{HeadNorm, RopeConfig};
use model::{Family, GenerationDefaults, ModelConfig};
use serde_json::{Value, json};

/// A Llama configuration with the fields of `changes` set, or removed where null is given as `"(absent)"`.
fn config(changes: Value) -> Result<ModelConfig, String> {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    });
    for (name, value) in changes.as_object().unwrap() {
        if value == "(absent)" {
            config.as_object_mut().unwrap().remove(name);
        } else {
            config[name] = value.clone();
        }
    }
    ModelConfig::parse(&config.to_string()).map_err(|error| error.to_string())
}

fn family(architecture: &str, changes: Value) -> ModelConfig {
    let mut changes = changes;
    changes["architectures"] = json!([architecture]);
    config(changes).unwrap()
}

fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.window).collect()
}

#[test]
fn both_spellings_mean_the_same_rotation() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024});
    let mut five = llama3.clone();
    five["rope_theta"] = json!(500000.0);
    for changes in [json!({"rope_theta": 500000.0, "rope_scaling": llama3}), json!({"rope_parameters": five})] {
        let config = config(changes).unwrap();
        assert_eq!(config.ropes[0].theta, 500000.0);
        let expected = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 1024,
        };
        assert_eq!(config.ropes[0].scaling, expected);
        assert_eq!(config.context_limit, 2048);
    }
}

#[test]
fn rotation_defaults() {
    for changes in [
        json!({}),
        json!({"rope_scaling": null, "rope_theta": null}),
        json!({"rope_scaling": {"rope_type": "default"}}),
        json!({"rope_parameters": {"rope_type": "default", "rope_theta": 10000}}),
        json!({"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}}),
    ] {
        let config = config(changes).unwrap();
        let plain = RopeConfig { theta: 1e4, scaling: RopeScaling::None, rotary_dim: 32 };
        assert_eq!((config.ropes, config.context_limit), (vec![plain], 2048));
    }
    let linear = config(json!({"rope_scaling": {"type": "linear", "factor": 2}})).unwrap();
    assert_eq!((&linear.ropes[0].scaling, linear.context_limit), (&RopeScaling::Linear { factor: 2.0 }, 4096));
}

#[test]
fn yarn_as_model_cards_spell_it() {
    let plain = json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}});
    let config_plain = config(plain).unwrap();
    assert_eq!(config_plain.context_limit, 8192);
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        original_max_position: 2048,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: true,
    };
    assert_eq!(config_plain.ropes[0].scaling, expected);

    let mscale = |extra: Value| {
        let mut rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
        rope.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        match &config(json!({"rope_scaling": rope})).unwrap().ropes[0].scaling {
            RopeScaling::Yarn { attention_factor, .. } => *attention_factor,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(mscale(json!({"attention_factor": 1.5, "mscale": 3, "mscale_all_dim": 2})), Some(1.5));
    let both = mscale(json!({"mscale": 1.0, "mscale_all_dim": 0.5})).unwrap();
    let ln4 = 4f64.ln();
    assert!((both - (0.1 * ln4 + 1.0) / (0.05 * ln4 + 1.0)).abs() < 1e-12, "{both}");
    assert_eq!(mscale(json!({"mscale": 1.0})), None);
}

#[test]
fn families_differ_in_biases_norms_and_windows() {
    let parts =
        |config: &ModelConfig| (config.qkv_bias, config.o_bias, config.mlp_bias, config.head_norm == HeadNorm::PerHead);
    let all = json!({"attention_bias": true, "mlp_bias": true});
    for (architecture, expected_family, plain, biased) in [
        ("LlamaForCausalLM", Family::Llama, (false, false, false, false), (true, true, true, false)),
        ("MistralForCausalLM", Family::Mistral, (false, false, false, false), (false, false, false, false)),
        ("Qwen2ForCausalLM", Family::Qwen2, (true, false, false, false), (true, false, false, false)),
        ("Qwen3ForCausalLM", Family::Qwen3, (false, false, false, true), (true, true, false, true)),
    ] {
        let config = family(architecture, json!({}));
        assert_eq!((config.family, parts(&config)), (expected_family, plain), "{architecture}");
        assert_eq!(parts(&family(architecture, all.clone())), biased, "{architecture} with biases");
    }
}

#[test]
fn head_width_is_stated_or_derived() {
    assert_eq!(config(json!({})).unwrap().head_dim, 32);
    assert_eq!(config(json!({"head_dim": null})).unwrap().head_dim, 32);
    assert_eq!(config(json!({"head_dim": 64})).unwrap().head_dim, 64);
    assert_eq!(family("Qwen3ForCausalLM", json!({})).head_dim, 128, "transformers' default for this family");
    assert_eq!(config(json!({})).unwrap().num_kv_heads, 4);
    assert_eq!(config(json!({"num_key_value_heads": 2})).unwrap().num_kv_heads, 2);
}

#[test]
fn every_layer_says_which_window_it_has() {
    let all = |window| vec![window; 2];
    let mistral = |changes| windows(&family("MistralForCausalLM", changes));
    assert_eq!(mistral(json!({"sliding_window": null})), all(None));
    assert_eq!(mistral(json!({"sliding_window": 1024})), all(Some(1024)));
    assert_eq!(mistral(json!({})), all(Some(4096)), "transformers' default for this family");
    let qwen = |changes| windows(&family("Qwen2ForCausalLM", changes));
    assert_eq!(qwen(json!({"sliding_window": 1024})), all(None));
    let from =
        |first: usize| qwen(json!({"sliding_window": 1024, "use_sliding_window": true, "max_window_layers": first}));
    assert_eq!(from(0), all(Some(1024)));
    assert_eq!(from(1), [None, Some(1024)], "layers from max_window_layers on");
    assert_eq!(from(2), all(None));
    let layers =
        |kinds: [&str; 2]| qwen(json!({"sliding_window": 1024, "use_sliding_window": true, "layer_types": kinds}));
    assert_eq!(layers(["full_attention", "full_attention"]), all(None));
    assert_eq!(layers(["full_attention", "sliding_attention"]), [None, Some(1024)]);
    assert_eq!(layers(["sliding_attention", "full_attention"]), [Some(1024), None]);
    assert_eq!(windows(&config(json!({"sliding_window": 1024})).unwrap()), all(None), "Llama has none");
}

#[test]
fn a_model_type_stands_in_for_architectures() {
    let config = config(json!({"architectures": "(absent)", "model_type": "qwen3"})).unwrap();
    assert_eq!(config.family, Family::Qwen3);
}

#[test]
fn end_tokens_are_one_or_several() {
    assert_eq!(config(json!({"eos_token_id": 2})).unwrap().eos_token_ids, [2]);
    assert_eq!(config(json!({"eos_token_id": [5, 7]})).unwrap().eos_token_ids, [5, 7]);
    assert_eq!(config(json!({"eos_token_id": null})).unwrap().eos_token_ids, [0u32; 0]);
    let defaults = GenerationDefaults::parse(
        r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2], "pad_token_id": 3}"#,
    )
    .unwrap();
    let expected = GenerationDefaults {
        do_sample: Some(true),
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        eos_token_ids: vec![1, 2],
        ..GenerationDefaults::default()
    };
    assert_eq!(defaults, expected);
}

#[test]
fn the_cost_of_a_token_counts_every_matrix_once() {
    let config = config(json!({"num_key_value_heads": 2})).unwrap();
    let layer = 128 * (128 + 64 + 64) + 128 * 128 + 3 * 128 * 256;
    assert_eq!(config.flops_per_token(), 2 * 2 * layer);
    assert_eq!(config.flops_per_logit_row(), 2 * 100 * 128);
    // Scores and weighted sums: 2 flops each per context token and q channel, in each of 2 layers.
    assert_eq!(config.attention_flops(10), 2 * 4 * 128 * 10);
}
