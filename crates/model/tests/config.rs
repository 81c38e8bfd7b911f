//! What a configuration means: both spellings, every family's defaults, and the refusals of what is not computed.
//! (Malformed values are in `bad_files.rs`.)

use kernels::{
    Activation, DeltaShape, HeadLayout, KvDtype, LatentShape, MambaShape, OutputNorm, QueryGrowth, RopeScaling,
    RoutingRule, Scores,
};
use model::config::{
    DeltaConfig, ExpertConfig, FeedForward, FusedProjections, HeadNorm, LatentConfig, LayerConfig, MambaConfig, Mixer,
    NormKind, NormPlacement, RopeConfig, SharedExpertConfig, ShortConvolutionConfig,
};
use model::{Family, GenerationDefaults, Head, ModelConfig};
use protocol::sampling::SamplingParams;
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
        let plain = RopeConfig { theta: 1e4, scaling: RopeScaling::None, rotary_dim: 32, growth: None };
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

/// Every architecture, and the fields that some of them cannot do without.
const ARCHITECTURES: [(&str, Family); 73] = [
    ("ApertusForCausalLM", Family::Apertus),
    ("MiniMaxM2ForCausalLM", Family::MiniMaxM2),
    ("CohereForCausalLM", Family::Cohere),
    ("Cohere2ForCausalLM", Family::Cohere2),
    ("Cohere2MoeForCausalLM", Family::Cohere2Moe),
    ("PhimoeForCausalLM", Family::PhiMoe),
    ("PhiMoEForCausalLM", Family::PhiMoe),
    ("NemotronForCausalLM", Family::Nemotron),
    ("NemotronHForCausalLM", Family::NemotronH),
    ("FalconH1ForCausalLM", Family::FalconH1),
    ("KimiLinearForCausalLM", Family::KimiLinear),
    ("Starcoder2ForCausalLM", Family::Starcoder2),
    ("StableLmForCausalLM", Family::StableLm),
    ("OlmoForCausalLM", Family::Olmo),
    ("LlamaForCausalLM", Family::Llama),
    ("Llama4ForCausalLM", Family::Llama4),
    ("Llama4ForConditionalGeneration", Family::Llama4),
    ("ArceeForCausalLM", Family::Arcee),
    ("Ernie4_5ForCausalLM", Family::Ernie45),
    ("Ernie4_5_MoeForCausalLM", Family::Ernie45Moe),
    ("HunYuanDenseV1ForCausalLM", Family::HunYuanDense),
    ("HunYuanMoEV1ForCausalLM", Family::HunYuanMoe),
    ("GlmForCausalLM", Family::Glm),
    ("Glm4ForCausalLM", Family::Glm4),
    ("Dots1ForCausalLM", Family::Dots1),
    ("MistralForCausalLM", Family::Mistral),
    ("Qwen2ForCausalLM", Family::Qwen2),
    ("Qwen2VLForConditionalGeneration", Family::Qwen2),
    ("Qwen2_5_VLForConditionalGeneration", Family::Qwen2),
    ("MiMoForCausalLM", Family::Qwen2),
    ("Qwen3ForCausalLM", Family::Qwen3),
    ("GemmaForCausalLM", Family::Gemma),
    ("Gemma2ForCausalLM", Family::Gemma2),
    ("Gemma3ForCausalLM", Family::Gemma3),
    ("Gemma4ForCausalLM", Family::Gemma4),
    ("Gemma4ForConditionalGeneration", Family::Gemma4),
    ("Gemma4UnifiedForCausalLM", Family::Gemma4),
    ("Gemma4UnifiedForConditionalGeneration", Family::Gemma4),
    ("Phi3ForCausalLM", Family::Phi3),
    ("Olmo2ForCausalLM", Family::Olmo2),
    ("Olmo3ForCausalLM", Family::Olmo3),
    ("OlmoeForCausalLM", Family::Olmoe),
    ("Exaone4ForCausalLM", Family::Exaone4),
    ("SeedOssForCausalLM", Family::SeedOss),
    ("MinistralForCausalLM", Family::Mistral),
    ("Ministral3ForCausalLM", Family::Mistral),
    ("GraniteForCausalLM", Family::Granite),
    ("GraniteSWAForCausalLM", Family::GraniteSwa),
    ("GraniteMoeSWAForCausalLM", Family::GraniteMoeSwa),
    ("SmolLM3ForCausalLM", Family::SmolLm3),
    ("MixtralForCausalLM", Family::Mixtral),
    ("FlexOlmoForCausalLM", Family::FlexOlmo),
    ("Qwen2MoeForCausalLM", Family::Qwen2Moe),
    ("Qwen3MoeForCausalLM", Family::Qwen3Moe),
    ("GptOssForCausalLM", Family::GptOss),
    ("Qwen3NextForCausalLM", Family::Qwen3Next),
    ("Qwen3_5ForCausalLM", Family::Qwen35),
    ("Qwen3_5ForConditionalGeneration", Family::Qwen35),
    ("Qwen3_5MoeForCausalLM", Family::Qwen35Moe),
    ("Qwen3_5MoeForConditionalGeneration", Family::Qwen35Moe),
    ("Lfm2ForCausalLM", Family::Lfm2),
    ("Lfm2MoeForCausalLM", Family::Lfm2Moe),
    ("Lfm3ForCausalLM", Family::Lfm3),
    ("MuseGlimmerForCausalLM", Family::MuseGlimmer),
    ("MuseGlimmerForConditionalGeneration", Family::MuseGlimmer),
    ("Glm4MoeForCausalLM", Family::Glm4Moe),
    ("DeepseekV2ForCausalLM", Family::DeepSeekV2),
    ("DeepseekV3ForCausalLM", Family::DeepSeekV3),
    ("Glm4MoeLiteForCausalLM", Family::Glm4MoeLite),
    ("Mistral4ForCausalLM", Family::Mistral4),
    ("GraniteMoeForCausalLM", Family::GraniteMoe),
    ("GraniteMoeSharedForCausalLM", Family::GraniteMoe),
    ("GraniteMoeHybridForCausalLM", Family::GraniteHybrid),
];

fn of_family(wanted: Family, mut changes: Value) -> ModelConfig {
    let (architecture, _) = ARCHITECTURES.into_iter().find(|(_, family)| *family == wanted).unwrap();
    let experts = json!({"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 48, "n_routed_experts": 8, "moe_topk": [2, 2], "moe_num_experts": 8, "moe_k": 2});
    let latents = json!({"kv_lora_rank": 64, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
        "first_k_dense_replace": 1});
    let with_latents =
        [Family::DeepSeekV2, Family::DeepSeekV3, Family::Glm4MoeLite, Family::Mistral4, Family::KimiLinear];
    let has_latents = with_latents.contains(&wanted);
    let latents = latents.as_object().unwrap().iter().filter(|_| has_latents);
    for (name, value) in experts.as_object().unwrap().iter().chain(latents) {
        if changes.get(name).is_none() {
            changes[name] = value.clone();
        }
    }
    if wanted == Family::Llama4 {
        changes["intermediate_size_mlp"] = json!(512);
    }
    if wanted == Family::FalconH1 && changes.get("mamba_n_heads").is_none() {
        changes["mamba_n_heads"] = json!(16);
    }
    if wanted == Family::HunYuanMoe {
        changes["num_experts"] = json!(8);
    }
    if [Family::GptOss, Family::Apertus, Family::Mistral4].contains(&wanted) && changes.get("rope_parameters").is_none()
    {
        changes["rope_parameters"] = json!({"rope_type": "default"}); // none is assumed
    }
    if changes.get("num_hidden_layers").is_none() {
        changes["full_attention_interval"] = json!(2); // of two layers
        if wanted == Family::Lfm3 {
            changes["layer_types"] = json!(["full_attention", "full_attention"]);
        }
    }
    let is_listed = ["layer_types", "hybrid_override_pattern"].iter().any(|list| changes.get(list).is_some());
    if !is_listed && [Family::GraniteHybrid, Family::NemotronH].contains(&wanted) {
        let layers = changes.get("num_hidden_layers").map_or(2, |layers| layers.as_u64().unwrap() as usize);
        changes["layer_types"] = json!(vec!["attention"; layers]);
    }
    let config = family(architecture, changes);
    assert_eq!(config.family, wanted);
    config
}

#[test]
fn families_differ_in_biases() {
    let biases = |config: &ModelConfig| (config.qkv_bias, config.o_bias, config.mlp_bias);
    let all = json!({"attention_bias": true, "mlp_bias": true});
    for (family, plain, biased) in [
        (Family::Llama, (false, false, false), (true, true, true)),
        (Family::Mistral, (false, false, false), (false, false, false)),
        (Family::Arcee, (false, false, false), (true, true, true)),
        (Family::Cohere2, (false, false, false), (true, true, false)),
        (Family::Nemotron, (false, false, false), (true, true, true)),
        (Family::NemotronH, (false, false, false), (true, true, true)),
        (Family::FalconH1, (false, false, false), (false, false, false)),
        (Family::Starcoder2, (true, true, true), (true, true, true)),
        (Family::StableLm, (false, false, false), (false, false, false)),
        (Family::Olmo, (false, false, false), (true, true, false)),
        (Family::Ernie45, (false, false, false), (false, false, false)),
        (Family::HunYuanMoe, (false, false, false), (true, true, false)),
        (Family::Glm, (false, false, false), (true, false, false)),
        (Family::Glm4, (true, false, false), (true, false, false)),
        (Family::Dots1, (false, false, false), (true, true, false)),
        (Family::Qwen2, (true, false, false), (true, false, false)),
        (Family::Qwen3, (false, false, false), (true, true, false)),
        (Family::Gemma2, (false, false, false), (true, true, false)),
        (Family::Gemma3, (false, false, false), (true, true, false)),
        (Family::Phi3, (false, false, false), (false, false, false)),
        (Family::Olmo2, (false, false, false), (true, true, false)),
        (Family::Olmo3, (false, false, false), (true, true, false)),
        (Family::Olmoe, (false, false, false), (true, true, false)),
        (Family::Exaone4, (false, false, false), (false, false, false)),
        (Family::SeedOss, (true, false, false), (true, false, true)),
        (Family::Granite, (false, false, false), (true, true, true)),
        (Family::SmolLm3, (false, false, false), (true, true, true)),
        (Family::Mixtral, (false, false, false), (false, false, false)),
        (Family::Qwen3Moe, (false, false, false), (true, true, false)),
        (Family::GptOss, (true, true, false), (true, true, false)),
        (Family::Qwen3Next, (false, false, false), (true, true, false)),
        (Family::Qwen35, (false, false, false), (true, true, false)),
        (Family::Qwen35Moe, (false, false, false), (true, true, false)),
        (Family::Lfm2, (false, false, false), (false, false, false)),
        (Family::Lfm2Moe, (false, false, false), (false, false, false)),
        (Family::Glm4Moe, (false, false, false), (true, false, false)),
        (Family::GraniteMoe, (false, false, false), (true, true, false)),
        (Family::GraniteHybrid, (false, false, false), (true, true, false)),
    ] {
        assert_eq!(biases(&of_family(family, json!({}))), plain, "{family}");
        assert_eq!(biases(&of_family(family, all.clone())), biased, "{family} with biases");
    }
}

/// What transformers assumes of fields that are absent, and what an architecture fixes.
#[test]
fn families_differ_in_norms_and_defaults() {
    use Activation::{Clamped, GeluTanh, ReluSquared, Silu};
    use HeadNorm::{AfterRotation, PerHead, WholeWidth};
    use NormPlacement::{After, Around, Before, Parallel};
    const XIELU: Activation = Activation::Xielu { positive: 0.8, negative: 0.8, beta: 0.5, eps: -1e-6 };
    let none = HeadNorm::None;
    for (family, norms, head_norm, activation, head_dim, theta, tied) in [
        (Family::Llama, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Mistral, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Arcee, (Before, false), none, ReluSquared, 32, 1e4, false),
        (Family::MiniMaxM2, (Before, false), WholeWidth, Silu, 128, 5e6, false),
        (Family::Apertus, (Before, false), PerHead, XIELU, 32, 1.2e7, false),
        (Family::Cohere, (Parallel, false), none, Silu, 32, 5e5, true),
        (Family::Cohere2, (Parallel, false), none, Silu, 32, 1e4, true),
        (Family::Cohere2Moe, (Parallel, false), none, Silu, 128, 1e4, true),
        (Family::PhiMoe, (Before, false), none, Silu, 32, 1e6, false),
        (Family::GraniteSwa, (Before, false), none, Silu, 32, 1e4, true),
        (Family::GraniteMoeSwa, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Llama4, (Before, false), AfterRotation, Silu, 128, 5e5, false),
        (Family::Nemotron, (Before, true), none, ReluSquared, 32, 1e4, false),
        (Family::FalconH1, (Before, false), none, Silu, 32, 1e4, false),
        (Family::NemotronH, (Before, false), none, ReluSquared, 128, 1e4, false),
        (Family::Starcoder2, (Before, false), none, GeluTanh, 32, 1e4, true),
        (Family::StableLm, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Olmo, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Ernie45, (Before, false), none, Silu, 128, 5e5, true),
        (Family::Ernie45Moe, (Before, false), none, Silu, 32, 5e5, true),
        (Family::HunYuanDense, (Before, false), AfterRotation, Silu, 32, 1e4, false),
        (Family::HunYuanMoe, (Before, false), AfterRotation, Silu, 32, 1e4, false),
        (Family::Glm, (Before, false), none, Silu, 128, 1e4, false),
        (Family::Glm4, (Around, false), none, Silu, 128, 1e4, false),
        (Family::Dots1, (Before, false), PerHead, Silu, 32, 1e4, false),
        (Family::Qwen2, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Qwen3, (Before, false), PerHead, Silu, 128, 1e4, false),
        (Family::Gemma, (Before, true), none, GeluTanh, 256, 1e4, true),
        (Family::Gemma2, (Around, true), none, GeluTanh, 256, 1e4, true),
        (Family::FlexOlmo, (After, false), WholeWidth, Silu, 32, 5e5, false),
        (Family::Qwen2Moe, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Gemma3, (Around, true), PerHead, GeluTanh, 256, 1e6, true),
        (Family::Gemma4, (Around, false), HeadNorm::WithValues, GeluTanh, 256, 1e6, true),
        (Family::Phi3, (Before, false), none, Silu, 32, 1e4, false),
        (Family::Olmo2, (After, false), WholeWidth, Silu, 32, 1e4, false),
        (Family::Granite, (Before, false), none, Silu, 32, 1e4, false),
        (Family::SmolLm3, (Before, false), none, Silu, 32, 2e6, true),
        (Family::Mixtral, (Before, false), none, Silu, 32, 1e6, false),
        (Family::Qwen3Moe, (Before, false), PerHead, Silu, 32, 1e4, false),
        (Family::GptOss, (Before, false), none, Clamped { limit: 7.0 }, 64, 1.5e5, false),
        (Family::Qwen3Next, (Before, true), PerHead, Silu, 256, 1e4, false),
        (Family::Qwen35, (Before, true), PerHead, Silu, 256, 1e4, false),
        (Family::Qwen35Moe, (Before, true), PerHead, Silu, 256, 1e4, false),
        (Family::Lfm2, (Before, false), PerHead, Silu, 32, 1e6, true),
        (Family::Lfm2Moe, (Before, false), PerHead, Silu, 32, 1e6, true),
        (Family::Lfm3, (Around, false), PerHead, Silu, 128, 1e6, true),
        (Family::MuseGlimmer, (Around, true), PerHead, Silu, 128, 1e4, false),
        (Family::Glm4Moe, (Before, false), none, Silu, 32, 1e4, false),
    ] {
        let config = of_family(family, json!({}));
        assert_eq!((config.norms, config.norms_around_zero), norms, "{family}");
        let found = (config.head_norm, config.activation, config.head_dim);
        assert_eq!(found, (head_norm, activation, head_dim), "{family}");
        assert_eq!((config.ropes[0].theta, config.head.tables() == 1), (theta, tied), "{family}");
        let fused = match family {
            Family::Phi3 => FusedProjections::All,
            Family::Glm | Family::Glm4 => FusedProjections::GateUp,
            _ => FusedProjections::None,
        };
        let ungated = [Family::Arcee, Family::Apertus, Family::Nemotron, Family::NemotronH, Family::Starcoder2];
        let gated = !ungated.contains(&family);
        assert_eq!((config.fused_projections, config.gated_mlp), (fused, gated), "{family}");
        let norm = match family {
            Family::Cohere | Family::Cohere2 => NormKind::Layer { weight: true, bias: false },
            Family::Nemotron | Family::Starcoder2 | Family::StableLm | Family::PhiMoe => {
                NormKind::Layer { weight: true, bias: true }
            }
            Family::Olmo => NormKind::Layer { weight: false, bias: false },
            _ => NormKind::Rms,
        };
        assert_eq!(config.norm, norm, "{family}");
        let neighbours = [
            Family::Cohere,
            Family::Cohere2,
            Family::Cohere2Moe,
            Family::Ernie45,
            Family::Ernie45Moe,
            Family::Glm,
            Family::Glm4,
            Family::Llama4,
        ];
        assert_eq!(config.neighbours, neighbours.contains(&family), "{family}");
    }
    let eps = |family| of_family(family, json!({"rms_norm_eps": null})).rms_norm_eps;
    assert_eq!(of_family(Family::Cohere2Moe, json!({"rms_norm_eps": 1e-3})).norm, NormKind::Rms);
    assert_eq!(of_family(Family::Cohere, json!({"use_qk_norm": true})).head_norm, HeadNorm::Centered);
    for family in [Family::Phi3, Family::Olmo2, Family::Mixtral, Family::Lfm2, Family::Lfm2Moe, Family::Glm4Moe] {
        assert_eq!(eps(family), 1e-5, "{family}");
    }
    assert_eq!(of_family(Family::Lfm2, json!({"norm_eps": 1e-3, "rms_norm_eps": 0.5})).rms_norm_eps, 1e-3);
    assert_eq!(of_family(Family::Glm4Moe, json!({"use_qk_norm": true})).head_norm, PerHead);
    assert_eq!(eps(Family::Llama), 1e-6);
}

#[test]
fn activations_have_names() {
    let activation = |changes| config(changes).unwrap().activation;
    assert_eq!(activation(json!({"hidden_act": "swish"})), Activation::Silu);
    assert_eq!(activation(json!({"hidden_act": "gelu_pytorch_tanh"})), Activation::GeluTanh);
    let both = json!({"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "silu"});
    assert_eq!(of_family(Family::Gemma2, both).activation, Activation::GeluTanh, "Gemma's field comes first");
}

/// Ministral 3 as it was published, by itself and as a part of what sees images.
#[test]
fn queries_of_ministral_3_grow() {
    let rope = json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
        "max_position_embeddings": 262144, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1});
    let text = json!({"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 100, "max_position_embeddings": 262144, "sliding_window": null, "rope_parameters": rope});
    let alone = |changes: Value| {
        let mut fields = text.clone();
        fields["architectures"] = json!(["Ministral3ForCausalLM"]);
        fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::parse(&fields.to_string()).map_err(|error| error.to_string())
    };
    let within = |text_type: &str| {
        let mut inner = text.clone();
        inner["model_type"] = json!(text_type);
        let config = json!({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": inner});
        ModelConfig::parse(&config.to_string()).map_err(|error| error.to_string())
    };
    let growth = QueryGrowth { beta: 0.1, original_max_position: 16384, first: 0 };
    for config in [alone(json!({})).unwrap(), within("ministral3").unwrap()] {
        assert_eq!((config.family, config.rms_norm_eps, config.head_dim), (Family::Mistral, 1e-5, 128));
        assert_eq!((config.context_limit, windows(&config)), (262_144, vec![None; config.num_layers]));
        assert_eq!((config.ropes[0].growth, config.ropes[0].scaling.attention_factor()), (Some(growth), 1.0));
    }
    assert_eq!(within("mistral").unwrap().ropes[0].growth, None, "Mistral Small 3, of the same class");
    assert!(within("mistral4").unwrap_err().contains("kv_lora_rank: missing"), "Mistral Small 4, of the same class");
    let error = within("mistral5").unwrap_err();
    assert!(error.contains("\"mistral5\" is unknown as the text part of Mistral3ForConditionalGeneration"), "{error}");
    assert!(error.ends_with("mistral, ministral3 and mistral4 are"), "{error}");
    for (rope, found) in [
        (json!({"rope_type": "default"}), Ok(None)),
        (json!({"rope_type": "default", "llama_4_scaling_beta": 0}), Ok(None)),
        (
            json!({"rope_type": "default", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16384}),
            Ok(Some(growth)),
        ),
        (
            json!({"rope_type": "default", "llama_4_scaling_beta": 0.1}),
            Err("rope_parameters.original_max_position_embeddings: missing; queries grow"),
        ),
        (json!({"rope_type": "default", "llama_4_scaling_beta": -1}), Err("rope_parameters.llama_4_scaling_beta: ")),
        (json!(null), Err("rope_parameters: missing")),
    ] {
        match (alone(json!({"rope_parameters": rope})), found) {
            (Ok(config), Ok(wanted)) => assert_eq!(config.ropes[0].growth, wanted, "{rope}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{rope}: {error}"),
            (found, _) => panic!("{rope}: {found:?}"),
        }
    }
    // Of others, the field is none.
    assert_eq!(family("MistralForCausalLM", json!({"rope_parameters": rope})).ropes[0].growth, None);
}

/// gpt-oss as it was published, and what is refused.
#[test]
fn gpt_oss_has_sinks_biases_and_clamped_gates() {
    let published = json!({
        "num_local_experts": 32, "experts_per_token": 4, "num_experts_per_tok": 4, "hidden_act": "silu", "swiglu_limit": 7.0,
        "attention_bias": true, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": 150000, "initial_context_length": 4096, "max_position_embeddings": 131072,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": false},
    });
    let config = of_family(Family::GptOss, published);
    let rule = RoutingRule { top_k: 4, over_chosen: true, scores: Scores::Softmax };
    let experts = ExpertConfig { biases: true, ..experts(32, 256, rule, None) };
    assert_eq!((config.experts, config.sinks, windows(&config)), (Some(experts), true, vec![Some(128), None]));
    assert_eq!((config.activation, config.context_limit), (Activation::Clamped { limit: 7.0 }, 131_072));
    let yarn = RopeScaling::Yarn {
        factor: 32.0,
        original_max_position: 4096,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: false,
    };
    assert_eq!((config.ropes[0].theta, &config.ropes[0].scaling), (1.5e5, &yarn));
    assert!(!of_family(Family::Mixtral, json!({})).sinks);
    for (field, value, expected) in [
        ("rope_parameters", json!(null), "rope_parameters: missing"),
        ("hidden_act", json!("gelu_pytorch_tanh"), "hidden_act: \"gelu_pytorch_tanh\" is not supported; silu is"),
        ("swiglu_alpha", json!(1.0), "swiglu_alpha: 1 is not supported; 1.702 is"),
        ("swiglu_limit", json!(0), "swiglu_limit: "),
        ("swiglu_limit", json!("7"), "swiglu_limit: "),
    ] {
        let mut changes = json!({"architectures": ["GptOssForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default"}});
        changes[field] = value;
        let error = self::config(changes).unwrap_err();
        assert!(error.contains(expected), "{field}: {error}");
    }
}

#[test]
fn multipliers_and_caps() {
    let numbers = |config: &ModelConfig| {
        let multipliers = [config.embedding_multiplier, config.residual_multiplier, config.logits_multiplier];
        (config.attention_scale, multipliers, config.attention_softcap, config.logits_softcap)
    };
    let plain = (1.0 / 32f32.sqrt(), [1.0; 3], None, None);
    let fields = json!({
        "query_pre_attn_scalar": 144, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0,
        "attention_multiplier": 0.5, "embedding_multiplier": 12, "residual_multiplier": 0.25, "logits_scaling": 8.0,
        "output_multiplier": 0.5,
    });
    let (gemma, granite) = (128f32.sqrt(), [12.0, 0.25, 0.125]);
    for (family, absent, stated) in [
        (Family::Llama, plain, plain),
        (
            Family::Gemma2,
            (1.0 / 16.0, [gemma, 1.0, 1.0], Some(50.0), Some(30.0)),
            (1.0 / 12.0, [gemma, 1.0, 1.0], Some(20.0), Some(10.0)),
        ),
        (
            Family::Gemma3,
            (1.0 / 16.0, [gemma, 1.0, 1.0], None, None),
            (1.0 / 12.0, [gemma, 1.0, 1.0], None, Some(10.0)),
        ),
        (Family::Gemma4, (1.0, [gemma, 1.0, 1.0], None, None), (1.0, [gemma, 1.0, 1.0], None, Some(10.0))),
        (
            Family::MuseGlimmer,
            (1.0 / 128f32.sqrt(), [1.0, 1.0, (256f64 / 6656.0).sqrt() as f32], None, Some(20.0)),
            (1.0 / 128f32.sqrt(), [1.0, 1.0, 0.5], None, Some(10.0)),
        ),
        (Family::Granite, (1.0, [1.0; 3], None, None), (0.5, granite, None, None)),
    ] {
        assert_eq!(numbers(&of_family(family, json!({}))), absent, "{family}");
        assert_eq!(numbers(&of_family(family, fields.clone())), stated, "{family}");
    }
    let uncapped = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let uncapped = of_family(Family::Gemma2, uncapped);
    assert_eq!((uncapped.attention_softcap, uncapped.logits_softcap), (None, None), "null is no cap");
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

    // 'W' is a layer with the window.
    let pattern = |family, changes: Value| -> String {
        let mut changes = changes;
        changes["num_hidden_layers"] = json!(7);
        let config = of_family(family, changes);
        let letter = |layer: &LayerConfig| if layer.window.is_some() { 'W' } else { '.' };
        config.layers.iter().map(letter).collect()
    };
    let window = json!({"sliding_window": 512});
    let asked = json!({"sliding_window": 512, "use_sliding_window": true});
    for (family, changes, expected) in [
        (Family::Gemma2, json!({}), "W.W.W.W"),
        (Family::Gemma2, json!({"sliding_window": null}), "......."),
        (Family::Gemma3, json!({}), "WWWWW.W"),
        (Family::Gemma3, json!({"sliding_window_pattern": 3}), "WW.WW.W"),
        (Family::Gemma4, json!({}), "WWWWW.."), // the last sees all
        (Family::MuseGlimmer, json!({}), "WW.WWW."),
        (Family::Lfm3, json!({}), "....W.."), // the first is a convolution
        (Family::Phi3, json!({}), "......."),
        (Family::Dots1, json!({"max_window_layers": 5}), ".....WW"),
        (Family::Dots1, json!({"max_window_layers": 5, "sliding_window": null}), "......."),
        (Family::Phi3, json!({"sliding_window": null}), "......."),
        (Family::Phi3, window.clone(), "WWWWWWW"),
        (Family::Mixtral, json!({}), "......."),
        (Family::Mixtral, window.clone(), "WWWWWWW"),
        (Family::Olmo2, window.clone(), "......."),
        (Family::Olmo3, json!({}), "WWW.WWW"),
        (Family::Cohere2, json!({}), "WWW.WWW"),
        (Family::Llama4, json!({}), "WWW.WWW"),
        (Family::Llama4, json!({"attention_chunk_size": null}), "......."),
        (Family::Cohere2Moe, json!({"rms_norm_eps": null}), "WWW.WWW"),
        (Family::Cohere2Moe, json!({"rms_norm_eps": null, "first_k_dense_replace": 2}), "..WWW.W"),
        (Family::GraniteSwa, json!({}), ".WWW.WW"),
        (Family::Starcoder2, json!({}), "......."),
        (Family::Starcoder2, window.clone(), "WWWWWWW"),
        (Family::Exaone4, json!({}), "WWW.WWW"),
        (Family::GptOss, json!({}), "W.W.W.W"),
        (Family::GptOss, json!({"sliding_window": null}), "......."),
        (Family::Granite, window.clone(), "......."),
        (Family::Qwen2Moe, window.clone(), "......."),
        (Family::Qwen2Moe, asked.clone(), "W.W.W.W"),
        (Family::Qwen3Moe, window.clone(), "......."),
        (Family::Qwen3Moe, asked.clone(), "WWWWWWW"),
        (Family::SmolLm3, window, "......."),
        (Family::SmolLm3, asked, "...W..."),
    ] {
        assert_eq!(pattern(family, changes.clone()), expected, "{family} {changes}");
    }
    let listed = json!({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64});
    assert_eq!(windows(&of_family(Family::Gemma2, listed)), [None, Some(64)], "a list counts more than the pattern");
    // Layers of another kind are refused, whether windows are asked for or not.
    for asked in [false, true] {
        let other = json!({"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": asked,
            "layer_types": ["full_attention", "linear_attention"]});
        let error = config(other).expect_err("it is another model");
        assert!(error.to_string().contains("layer_types: \"linear_attention\" is not supported"), "{error}");
    }
}

#[test]
fn every_layer_says_which_rotation_it_has() {
    let ropes = |config: &ModelConfig| config.layers.iter().map(|layer| layer.rope).collect::<Vec<_>>();
    // Layers with a window turn by another base and are never stretched; both spellings.
    let four =
        json!({"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8}});
    let five = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }});
    for mut changes in [four, five] {
        changes["sliding_window_pattern"] = json!(2);
        let gemma3 = of_family(Family::Gemma3, changes);
        let full =
            RopeConfig { theta: 2e6, scaling: RopeScaling::Linear { factor: 8.0 }, rotary_dim: 256, growth: None };
        let local = RopeConfig { theta: 2e4, scaling: RopeScaling::None, rotary_dim: 256, growth: None };
        assert_eq!(gemma3.ropes, [full, local]);
        assert_eq!(ropes(&gemma3), [Some(1), Some(0)]);
        assert_eq!(gemma3.context_limit, 2048, "the stated length counts the stretching");
    }
    let plain = of_family(Family::Gemma3, json!({}));
    assert_eq!(plain.ropes.iter().map(|rope| rope.theta).collect::<Vec<_>>(), [1e6, 1e4]);
    assert_eq!(ropes(&of_family(Family::Gemma2, json!({}))), [Some(0), Some(0)], "Gemma 2 has one for all");

    // A base for each layer or one for all, none for some; without a list, every fourth from the last has none.
    let muse = |list: Value| of_family(Family::MuseGlimmer, json!({"num_hidden_layers": 3, "layer_rope_theta": list}));
    assert_eq!(ropes(&muse(json!(null))), [Some(0), Some(0), None]);
    let listed = muse(json!([2e4, 0, 5e2]));
    assert_eq!((ropes(&listed), listed.ropes.len()), (vec![Some(0), None, Some(0)], 1), "its base is that of all");
    let types = json!({"num_hidden_layers": 2, "layer_types": ["sliding_attention", "sliding_attention"]});
    assert_eq!(ropes(&of_family(Family::MuseGlimmer, types)), [Some(0), None], "the last has none, window or not");
    let of_layers = json!({"num_hidden_layers": 3, "layer_rope_theta": [2e4, 0, 1e4]});
    let listed = of_family(Family::GraniteSwa, of_layers);
    assert_eq!(
        (ropes(&listed), listed.ropes[0].theta, listed.ropes[1].theta),
        (vec![Some(0), None, Some(1)], 2e4, 1e4)
    );

    let smollm3 = |changes: Value| {
        let mut changes = changes;
        changes["num_hidden_layers"] = json!(5);
        of_family(Family::SmolLm3, changes).layers.iter().map(|layer| layer.rope.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(smollm3(json!({})), [true, true, true, false, true]);
    assert_eq!(smollm3(json!({"no_rope_layer_interval": 2})), [true, false, true, false, true]);
    assert_eq!(smollm3(json!({"no_rope_layers": [0, 1, 1, 0, 0, 1]})), [false, true, true, false, false]);
}

#[test]
fn long_rope_over_a_part_of_a_head() {
    let scaling = json!({"type": "longrope", "short_factor": vec![1.0; 12], "long_factor": vec![4; 12]});
    let phi = of_family(
        Family::Phi3,
        json!({"rope_scaling": scaling, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 512}),
    );
    let expected = RopeScaling::LongRope {
        short_factor: vec![1.0; 12],
        long_factor: vec![4.0; 12],
        factor: 4.0,
        original_max_position: 512,
        attention_factor: None,
    };
    assert_eq!(phi.ropes, [RopeConfig { theta: 1e4, scaling: expected, rotary_dim: 24, growth: None }]);
    assert_eq!(phi.context_limit, 2048);
    let old = json!({"type": "su", "short_factor": vec![1.0; 16], "long_factor": vec![4; 16]});
    let old = of_family(Family::Phi3, json!({"rope_scaling": old}));
    assert!(matches!(old.ropes[0].scaling, RopeScaling::LongRope { .. }), "the method's first name");
}

fn experts(
    num_experts: usize,
    intermediate_size: usize,
    rule: RoutingRule,
    shared: Option<SharedExpertConfig>,
) -> ExpertConfig {
    ExpertConfig {
        num_experts,
        intermediate_size,
        rule,
        biases: false,
        has_choice_bias: rule.scores != Scores::Softmax,
        shared,
        latent: None,
        halved: false,
        beside_mlp: false,
    }
}

#[test]
fn experts_of_both_families() {
    let rule = |top_k, over_chosen| RoutingRule { top_k, over_chosen, scores: Scores::Softmax };
    let mixtral = of_family(Family::Mixtral, json!({}));
    let expected = experts(8, 256, rule(2, true), None);
    assert_eq!(mixtral.experts, Some(expected));
    assert!(mixtral.layers.iter().all(|layer| layer.has_experts()));

    for name in ["num_experts", "num_local_experts"] {
        let mut changes = json!({"num_local_experts": null, "norm_topk_prob": true});
        changes[name] = json!(16);
        let expected = experts(16, 64, rule(2, true), None);
        assert_eq!(of_family(Family::Qwen3Moe, changes).experts, Some(expected), "{name}");
    }
    assert_eq!(of_family(Family::Qwen3Moe, json!({})).experts.unwrap().rule, rule(2, false));
    let with_experts = |changes: Value| {
        let mut changes = changes;
        changes["num_hidden_layers"] = json!(4);
        of_family(Family::Qwen3Moe, changes).layers.iter().map(|layer| layer.has_experts()).collect::<Vec<_>>()
    };
    assert_eq!(with_experts(json!({})), [true; 4]);
    assert_eq!(with_experts(json!({"decoder_sparse_step": 2})), [false, true, false, true]);
    assert_eq!(with_experts(json!({"mlp_only_layers": [0, 3]})), [false, true, true, false]);
    assert_eq!(of_family(Family::Llama, json!({})).experts, None);
}

#[test]
fn a_model_type_stands_in_for_architectures() {
    let config = config(json!({"architectures": "(absent)", "model_type": "qwen3"})).unwrap();
    assert_eq!(config.family, Family::Qwen3);
}

/// The class without a head of each class is the same model.
#[test]
fn every_class_has_its_base() {
    let bases = [
        ("LlamaModel", Family::Llama),
        ("MistralModel", Family::Mistral),
        ("ArceeModel", Family::Arcee),
        ("CohereModel", Family::Cohere),
        ("ApertusModel", Family::Apertus),
        ("MiniMaxM2Model", Family::MiniMaxM2),
        ("Cohere2Model", Family::Cohere2),
        ("Cohere2MoeModel", Family::Cohere2Moe),
        ("PhimoeModel", Family::PhiMoe),
        ("GraniteSWAModel", Family::GraniteSwa),
        ("GraniteMoeSWAModel", Family::GraniteMoeSwa),
        ("NemotronModel", Family::Nemotron),
        ("Starcoder2Model", Family::Starcoder2),
        ("StableLmModel", Family::StableLm),
        ("OlmoModel", Family::Olmo),
        ("Ernie4_5Model", Family::Ernie45),
        ("Ernie4_5_MoeModel", Family::Ernie45Moe),
        ("HunYuanDenseV1Model", Family::HunYuanDense),
        ("HunYuanMoEV1Model", Family::HunYuanMoe),
        ("GlmModel", Family::Glm),
        ("Glm4Model", Family::Glm4),
        ("Dots1Model", Family::Dots1),
        ("Qwen2Model", Family::Qwen2),
        ("MiMoModel", Family::Qwen2),
        ("Qwen3Model", Family::Qwen3),
        ("Gemma2Model", Family::Gemma2),
        ("Gemma3TextModel", Family::Gemma3),
        ("Gemma3Model", Family::Gemma3),
        ("Phi3Model", Family::Phi3),
        ("Olmo2Model", Family::Olmo2),
        ("GraniteModel", Family::Granite),
        ("SmolLM3Model", Family::SmolLm3),
        ("MixtralModel", Family::Mixtral),
        ("Qwen3MoeModel", Family::Qwen3Moe),
        ("GptOssModel", Family::GptOss),
        ("Qwen3NextModel", Family::Qwen3Next),
        ("Qwen3_5TextModel", Family::Qwen35),
        ("Qwen3_5Model", Family::Qwen35),
        ("Qwen3_5MoeTextModel", Family::Qwen35Moe),
        ("Qwen3_5MoeModel", Family::Qwen35Moe),
        ("Lfm2Model", Family::Lfm2),
        ("Lfm2MoeModel", Family::Lfm2Moe),
        ("Lfm3Model", Family::Lfm3),
        ("MuseGlimmerTextModel", Family::MuseGlimmer),
        ("MuseGlimmerModel", Family::MuseGlimmer),
        ("Glm4MoeModel", Family::Glm4Moe),
        ("DeepseekV2Model", Family::DeepSeekV2),
        ("DeepseekV3Model", Family::DeepSeekV3),
        ("Glm4MoeLiteModel", Family::Glm4MoeLite),
        ("Mistral4Model", Family::Mistral4),
        ("GraniteMoeModel", Family::GraniteMoe),
        ("GraniteMoeSharedModel", Family::GraniteMoe),
        ("GraniteMoeHybridModel", Family::GraniteHybrid),
        ("NemotronHModel", Family::NemotronH),
        ("FalconH1Model", Family::FalconH1),
        ("KimiLinearModel", Family::KimiLinear),
    ];
    for (base, wanted) in bases {
        // What its own fields are is not asked here, but that its name is known.
        match config(json!({"architectures": [base], "tie_word_embeddings": false})) {
            Ok(config) => assert_eq!((config.family, config.head), (wanted, Head::Absent), "{base}"),
            Err(error) => assert!(!error.contains("unknown"), "{base}: {error}"),
        }
    }
    for (text, said) in [
        (json!({"model_type": "mistral"}), "its text part (\"mistral\") is known as MistralForCausalLM"),
        (json!({"model_type": "newest_text"}), "and so is its text part, \"newest_text\""),
    ] {
        let error =
            config(json!({"architectures": ["NewestForConditionalGeneration"], "text_config": text})).unwrap_err();
        assert!(error.contains("is unknown") && error.contains(said), "{error}");
    }
}

#[test]
fn a_text_model_within_a_larger_one() {
    let text = json!({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}});
    let config =
        json!({"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "text_config": text});
    let config = ModelConfig::parse(&config.to_string()).unwrap();
    assert_eq!((config.family, config.hidden_size, config.num_layers), (Family::Gemma3, 2560, 34));
    let assumed = (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size, config.context_limit);
    assert_eq!(assumed, (8, 4, 256, 262_208, 131_072), "what transformers assumes");
    assert_eq!((&config.eos_token_ids[..], config.head.tables() == 1), (&[1, 106][..], true));
    for (config, expected) in [
        (json!({"architectures": ["Gemma3ForConditionalGeneration"]}), "text_config: missing"),
        (json!({"model_type": "gemma3", "text_config": 7}), "text_config: expected an object"),
        (json!({"model_type": "gemma3", "text_config": {"num_hidden_layers": 0}}), "text_config.num_hidden_layers"),
    ] {
        let error = ModelConfig::parse(&config.to_string()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
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
        sampling: SamplingParams { top_k: Some(20), top_p: Some(0.95), ..SamplingParams::at(0.6) },
        eos_token_ids: vec![1, 2],
        ..GenerationDefaults::default()
    };
    assert_eq!(defaults, expected);
}

#[test]
fn the_cost_of_a_token_counts_the_experts_that_it_goes_to() {
    let config = of_family(Family::Qwen3Moe, json!({"mlp_only_layers": [0]}));
    let (attention, router, expert) = (4 * 128 * 128, 128 * 8, 3 * 128 * 64);
    let dense = attention + 3 * 128 * 256;
    assert_eq!(config.layer_parameters(), dense + attention + router + 8 * expert);
    assert_eq!(config.active_layer_parameters(), dense + attention + router + 2 * expert);
    assert_eq!(config.flops_per_token(), 2 * config.active_layer_parameters());
    let experts = config.shape().experts.unwrap();
    assert_eq!((experts.share_read(0.0), experts.share_read(1.0)), (0.0, 0.25));
    assert!((experts.share_read(2.0) - (1.0 - 0.75 * 0.75)).abs() < 1e-12);
    assert!(experts.share_read(100.0) > 0.999);
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

/// Which layers have a state instead of keys and values, of what shape, and what else these families have.
#[test]
fn layers_have_a_state_or_keys_and_values() {
    // 'L' is a layer of linear attention.
    let pattern = |family, mut changes: Value| -> String {
        changes["num_hidden_layers"] = json!(6);
        let config = of_family(family, changes);
        let letter = |layer: &LayerConfig| match (layer.mixer, layer.rope) {
            (Mixer::Attention, Some(0)) => '.',
            (Mixer::Delta(_), None) => 'L',
            other => panic!("{other:?}"),
        };
        config.layers.iter().map(letter).collect()
    };
    let (full, linear) = ("full_attention", "linear_attention");
    for family in [Family::Qwen3Next, Family::Qwen35, Family::Qwen35Moe] {
        for (changes, expected) in [
            (json!({}), "LLL.LL"),
            (json!({"full_attention_interval": 2}), "L.L.L."),
            (json!({"layer_types": [full, linear, linear, linear, full, linear]}), ".LLL.L"),
            (json!({"full_attention_interval": 3, "layer_types": null}), "LL.LL."),
        ] {
            assert_eq!(pattern(family, changes.clone()), expected, "{family} {changes}");
        }
    }

    let of = |family, changes: Value| {
        let mut changes = changes;
        changes["num_hidden_layers"] = json!(4);
        of_family(family, changes)
    };
    let delta = |config: &ModelConfig| match config.layers[0].mixer {
        Mixer::Delta(delta) => delta,
        other => panic!("{other:?}"),
    };
    let shape = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, by_key: false };
    let assumed = delta(&of(Family::Qwen35, json!({})));
    assert_eq!(assumed, DeltaConfig { shape, taps: 4, by_key_head: false }, "what transformers assumes");
    assert!(delta(&of(Family::Qwen3Next, json!({}))).by_key_head);
    let stated = json!({"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
        "linear_value_head_dim": 48, "linear_conv_kernel_dim": 3});
    let config = of(Family::Qwen35, stated);
    let shape = DeltaShape { key_heads: 2, value_heads: 6, key_dim: 16, value_dim: 48, by_key: false };
    assert_eq!(delta(&config), DeltaConfig { shape, taps: 3, by_key_head: false });
    // Two inputs of the convolution, and a matrix per value head, in three layers.
    assert_eq!(config.state_numbers(), 3 * (2 * (2 * 32 + 288) + 6 * 16 * 48));
    assert_eq!(config.cache_shape(KvDtype::Bf16, 1, 32).groups[0].layers, 1, "one layer has keys and values");
    assert_eq!(config.attention_flops(10), 4 * 4 * 256 * 10);
    let layout = HeadLayout { num_heads: 4, num_kv_heads: 4, head_dim: 256, gates: 256, ..HeadLayout::default() };
    assert_eq!((config.layers[0].heads, layout.qkv_width()), (layout, 4 * 4 * 256), "queries, gates, keys and values");
    assert_eq!(of_family(Family::Llama, json!({})).state_numbers(), 0);

    let turned = |changes| of(Family::Qwen35, changes).ropes[0].rotary_dim;
    for (changes, expected) in [
        (json!({}), 64),
        (json!({"partial_rotary_factor": 0.5}), 128),
        (json!({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 1.0}}), 256),
        (json!({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.125}}), 32),
    ] {
        assert_eq!(turned(changes.clone()), expected, "{changes}");
    }
}

#[test]
fn an_expert_of_every_token_is_beside_the_others() {
    let rule = |top_k, over_chosen| RoutingRule { top_k, over_chosen, scores: Scores::Softmax };
    let gated = Some(SharedExpertConfig { width: 48, gated: true });
    for (family, changes, rule, shared) in [
        (Family::Qwen3Next, json!({}), rule(2, true), gated),
        (Family::Qwen3Next, json!({"norm_topk_prob": false}), rule(2, false), gated),
        (Family::Qwen35Moe, json!({"norm_topk_prob": false}), rule(2, true), gated),
        (Family::Qwen3Moe, json!({}), rule(2, false), None),
    ] {
        let expected = experts(8, 64, rule, shared);
        let mut changes = changes;
        changes["num_hidden_layers"] = json!(4);
        assert_eq!(of_family(family, changes).experts, Some(expected), "{family}");
    }
    // Where every layer has experts, no field need say how wide another MLP would be.
    let config = of_family(Family::Qwen35Moe, json!({"num_hidden_layers": 4, "intermediate_size": null}));
    assert_eq!((config.intermediate_size, config.widest_mlp()), (64, 64));

    // Of a token's work: two of eight experts, the router, the shared one and its gate.
    let (hidden, row, gates) = (128u64, 2 * 16 * 128 + 2 * 32 * 128, 2 * 32);
    let linear = hidden * (row + gates) + hidden * 32 * 128;
    let attention = hidden * (4 * 4 * 256) + hidden * 4 * 256;
    let experts = |counted: u64| hidden * (8 + 3 * counted * 64 + 3 * 48 + 1);
    assert_eq!(config.layer_parameters(), 3 * linear + attention + 4 * experts(8));
    assert_eq!(config.active_layer_parameters(), 3 * linear + attention + 4 * experts(2));
    let shape = config.shape();
    assert_eq!((shape.kv_values, shape.kv_heads), (2 * 4 * 256, 4), "of the layer with keys and values");
    assert_eq!(shape.windows, [(None, 1)]);
    assert_eq!(shape.state_numbers, 3 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128));
    assert_eq!(shape.state_flops, 3 * (7 * 32 * 128 * 128 + 2 * 4 * (2 * 16 * 128 + 32 * 128)));
}

/// Short convolutions: which layers, and the width of the MLP beside them.
#[test]
fn layers_are_short_convolutions_or_attention() {
    // 'C' is a convolution.
    let pattern = |config: &ModelConfig| -> String {
        let letter = |layer: &LayerConfig| match (layer.mixer, layer.rope) {
            (Mixer::Attention, Some(0)) => '.',
            (Mixer::ShortConvolution(_), None) => 'C',
            other => panic!("{other:?}"),
        };
        config.layers.iter().map(letter).collect()
    };
    let (full, conv) = ("full_attention", "conv");
    for family in [Family::Lfm2, Family::Lfm2Moe] {
        for (changes, expected) in [
            (json!({}), "....."),
            (json!({"full_attn_idxs": [1, 4]}), "C.CC."),
            (json!({"layer_types": [conv, conv, full, conv, full]}), "CC.C."),
        ] {
            let mut changes = changes;
            changes["num_hidden_layers"] = json!(5);
            assert_eq!(pattern(&of_family(family, changes.clone())), expected, "{family} {changes}");
        }
    }
    let convolution = |changes: Value| {
        let mut changes = changes;
        changes["full_attn_idxs"] = json!([1]);
        let config = of_family(Family::Lfm2, changes);
        (config.layers[0].mixer, config.state_numbers())
    };
    let of = |taps, has_bias| Mixer::ShortConvolution(ShortConvolutionConfig { channels: 128, taps, has_bias });
    assert_eq!(convolution(json!({})), (of(3, false), 2 * 128), "what transformers assumes");
    assert_eq!(convolution(json!({"conv_L_cache": 7, "conv_bias": true})), (of(7, true), 6 * 128));

    let config = of_family(Family::Lfm2, json!({"full_attn_idxs": [1]}));
    let mlp = 3 * 128 * 256; // 2 / 3 of 256 is 170, rounded up to 256
    assert_eq!(config.layer_parameters(), (3 + 1) * 128 * 128 + 4 * 128 * 128 + 2 * mlp);
    assert_eq!(config.shape().state_flops, (2 * 3 + 2) * 128);

    let width = |family, changes| of_family(family, changes).intermediate_size;
    for (changes, expected) in [
        (json!({"intermediate_size": 12288}), 8192),
        (json!({"block_ff_dim": 12288}), 8192),
        (json!({"intermediate_size": 1000, "block_ffn_dim_multiplier": null}), 666),
        (json!({"intermediate_size": 1000, "block_ffn_dim_multiplier": 1.5}), 1024),
        (json!({"intermediate_size": 1000, "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 9}), 999),
        (json!({"intermediate_size": 1000, "block_auto_adjust_ff_dim": false}), 1000),
    ] {
        assert_eq!(width(Family::Lfm2, changes.clone()), expected, "{changes}");
    }
    assert_eq!(width(Family::Lfm2Moe, json!({"intermediate_size": 1000})), 1000, "as it is stated");
    for (changes, tied) in [
        (json!({"tie_embedding": false}), false),
        (json!({"tie_word_embeddings": false}), false),
        (json!({"tie_embedding": true, "tie_word_embeddings": false}), true),
    ] {
        assert_eq!(of_family(Family::Lfm2, changes.clone()).head == Head::Embedding, tied, "{changes}");
    }
}

#[test]
fn experts_by_sigmoid_have_a_bias_groups_and_a_factor() {
    let rule = |over_chosen, (groups, kept_groups), sum_eps, factor| {
        let scores = Scores::Sigmoid { groups, kept_groups, sum_eps, factor };
        RoutingRule { top_k: 2, over_chosen, scores }
    };
    let shared = |width| Some(SharedExpertConfig { width, gated: false });
    for (family, changes, expected) in [
        (Family::Lfm2Moe, json!({}), experts(8, 64, rule(true, (1, 1), 1e-6, 1.0), None)),
        (
            Family::Lfm2Moe,
            json!({"norm_topk_prob": false, "routed_scaling_factor": 2.5, "use_expert_bias": false, "n_group": 2}),
            ExpertConfig { has_choice_bias: false, ..experts(8, 64, rule(false, (1, 1), 1e-6, 2.5), None) },
        ),
        (Family::Glm4Moe, json!({}), experts(8, 64, rule(true, (1, 1), 1e-20, 1.0), shared(64))),
        (
            Family::Glm4Moe,
            json!({"norm_topk_prob": false, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2,
                "n_shared_experts": 3, "n_routed_experts": 16}),
            experts(16, 64, rule(false, (4, 2), 1e-20, 2.5), shared(192)),
        ),
        (Family::Glm4Moe, json!({"n_shared_experts": 0}), experts(8, 64, rule(true, (1, 1), 1e-20, 1.0), None)),
    ] {
        assert_eq!(of_family(family, changes.clone()).experts, Some(expected), "{family} {changes}");
    }
    let with_experts = |family, mut changes: Value| {
        changes["num_hidden_layers"] = json!(4);
        of_family(family, changes).layers.iter().map(|layer| layer.has_experts()).collect::<Vec<_>>()
    };
    for (family, name, absent) in
        [(Family::Lfm2Moe, "num_dense_layers", 2), (Family::Glm4Moe, "first_k_dense_replace", 1)]
    {
        let from = |first: usize| (0..4).map(|layer| layer >= first).collect::<Vec<_>>();
        assert_eq!(with_experts(family, json!({})), from(absent), "{family}");
        for first in [0, 3, 9] {
            assert_eq!(with_experts(family, json!({ name: first })), from(first), "{family}");
        }
    }
    assert_eq!(of_family(Family::Glm4Moe, json!({})).ropes[0].rotary_dim, 16, "half a head turns");

    // Of a token's work: two of eight experts, the router, and the shared one.
    let config = of_family(Family::Glm4Moe, json!({"n_shared_experts": 2}));
    let (attention, dense) = (4 * 128 * 128, 3 * 128 * 256);
    assert_eq!(config.active_layer_parameters(), 2 * attention + dense + 128 * (8 + 3 * (2 * 64 + 128)));
    assert_eq!(config.widest_mlp(), 256);
}

/// Latent attention: what the heads have, what the cache keeps, how experts are scored, what scores are multiplied by.
#[test]
fn latents_are_keys_and_values_of_all_heads() {
    let layer = |config: &ModelConfig| match config.layers[0].mixer {
        Mixer::Latent(latent) => latent,
        other => panic!("{other:?}"),
    };
    let config = of_family(Family::DeepSeekV3, json!({"q_lora_rank": 48}));
    let shape = LatentShape { num_heads: 4, rank: 64, plain: 24, turning: 16, value: 20 };
    assert_eq!(layer(&config), LatentConfig { shape, query_rank: Some(48), neighbours: true });
    assert!(!layer(&of_family(Family::DeepSeekV3, json!({"rope_interleave": false}))).neighbours);
    assert_eq!((config.layers[0].heads.head_dim, config.ropes[0].rotary_dim), (80, 16));
    let cache = config.cache_shape(KvDtype::Bf16, 1, 32);
    assert_eq!(cache.block_bytes(), 2 * 32 * 80 * 2, "a layer keeps a latent and what turns, once");
    // Down to what queries are made of, up again, latents, what they become, back; experts beside a dense layer.
    let heads = 128 * 48 + 48 * 160 + 128 * 80 + 4 * 44 * 64 + 80 * 128;
    let experts = 128 * (8 + 3 * (8 * 64 + 64));
    assert_eq!(config.layer_parameters(), 2 * heads + 3 * 128 * 256 + experts);
    assert_eq!(config.attention_flops(10), 2 * 2 * 4 * (80 + 64) * 10);

    let rule = |over_chosen, scores| RoutingRule { top_k: 2, over_chosen, scores };
    let grouped = |groups, kept_groups, factor| Scores::GroupedSoftmax { groups, kept_groups, factor };
    let sigmoid = |factor| Scores::Sigmoid { groups: 1, kept_groups: 1, sum_eps: 1e-20, factor };
    for (family, changes, expected) in [
        (Family::DeepSeekV2, json!({}), rule(false, Scores::Softmax)),
        (Family::DeepSeekV2, json!({"routed_scaling_factor": 16, "n_group": 4}), rule(false, grouped(1, 1, 16.0))),
        (
            Family::DeepSeekV2,
            json!({"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}),
            rule(false, grouped(8, 3, 1.0)),
        ),
        (Family::DeepSeekV3, json!({"routed_scaling_factor": 2.5}), rule(true, sigmoid(2.5))),
        (Family::Glm4MoeLite, json!({"norm_topk_prob": false}), rule(false, sigmoid(1.0))),
        (Family::Mistral4, json!({}), rule(true, Scores::Softmax)),
    ] {
        assert_eq!(of_family(family, changes.clone()).experts.unwrap().rule, expected, "{family} {changes}");
    }
    let listed = json!({"num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"]});
    let listed = of_family(Family::Glm4MoeLite, listed);
    let with_experts: Vec<bool> = listed.layers.iter().map(|layer| layer.has_experts()).collect();
    assert_eq!(with_experts, [true, false, true]);

    let scale = |rope: Value| of_family(Family::DeepSeekV3, json!({"rope_scaling": rope})).attention_scale;
    let yarn = |more: Value| {
        let mut rope = json!({"type": "yarn", "factor": 40, "original_max_position_embeddings": 64});
        more.as_object().unwrap().iter().for_each(|(name, value)| rope[name] = value.clone());
        rope
    };
    let plain = 1.0 / 40f32.sqrt();
    assert_eq!([scale(json!(null)), scale(yarn(json!({})))], [plain; 2]);
    let stretched = scale(yarn(json!({"mscale": 1, "mscale_all_dim": 1})));
    assert!((f64::from(stretched / plain) - (0.1 * 40f64.ln() + 1.0).powi(2)).abs() < 1e-5, "{stretched}");
}

fn config_of(shape: MambaShape) -> MambaConfig {
    MambaConfig {
        shape,
        taps: 4,
        has_conv_bias: true,
        output: OutputNorm::AfterGate,
        norm_groups: 1,
        factors: [1.0; 5],
        output_factor: 1.0,
    }
}

/// Mamba-2: which layers, of what shape, what is beside the experts, and where queries and keys turn.
#[test]
fn layers_are_mamba_or_attention() {
    // 'M' is Mamba-2, '-' attention without rotation.
    let pattern = |config: &ModelConfig| -> String {
        let letter = |layer: &LayerConfig| match (layer.mixer, layer.rope) {
            (Mixer::Attention, Some(0)) => '.',
            (Mixer::Attention, None) => '-',
            (Mixer::Mamba(_), None) => 'M',
            other => panic!("{other:?}"),
        };
        config.layers.iter().map(letter).collect()
    };
    let of = |changes: Value| {
        let mut changes = changes;
        changes["mamba_n_heads"] = json!(8);
        of_family(Family::GraniteHybrid, changes)
    };
    for (changes, expected) in [
        (json!({"layer_types": ["mamba", "attention"]}), "M-"),
        (json!({"layer_types": ["linear_attention", "full_attention"], "position_embedding_type": "nope"}), "M-"),
        (json!({"layer_types": ["attention", "mamba"], "position_embedding_type": "rope"}), ".M"),
        (json!({"layer_types": ["attention", "attention"], "position_embedding_type": "rope"}), ".."),
    ] {
        assert_eq!(pattern(&of(changes.clone())), expected, "{changes}");
    }
    let mamba = |changes: Value| {
        let mut changes = changes;
        changes["layer_types"] = json!(["mamba", "attention"]);
        let config = of(changes);
        match config.layers[0].mixer {
            Mixer::Mamba(mamba) => (mamba, config.state_numbers()),
            other => panic!("{other:?}"),
        }
    };
    let shape = |groups, state_dim| MambaShape { heads: 8, head_dim: 32, groups, state_dim };
    let config = |shape, taps, has_conv_bias| MambaConfig { taps, has_conv_bias, ..config_of(shape) };
    let (assumed, numbers) = mamba(json!({"time_step_limit": [0.0, {"__float__": "Infinity"}]}));
    assert_eq!(assumed, config(shape(1, 256), 4, true), "what transformers assumes");
    assert_eq!(numbers, 3 * (256 + 2 * 256) + 256 * 256);
    let stated = json!({"mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 64, "mamba_d_conv": 3,
        "mamba_conv_bias": false, "mamba_d_ssm": 7});
    assert_eq!(mamba(stated), (config(shape(2, 64), 3, false), 2 * (256 + 4 * 64) + 256 * 64));

    // Experts, and an MLP for every token without a gate; or that one alone.
    let rule = RoutingRule { top_k: 2, over_chosen: true, scores: Scores::Softmax };
    let shared = Some(SharedExpertConfig { width: 48, gated: false });
    let with = of(json!({"shared_intermediate_size": 48}));
    assert_eq!(with.experts, Some(experts(8, 256, rule, shared)));
    assert_eq!(of_family(Family::GraniteMoe, json!({})).experts, Some(experts(8, 256, rule, None)));
    let alone = of(json!({"num_local_experts": 0, "shared_intermediate_size": 48, "num_experts_per_tok": 0}));
    assert_eq!((alone.experts, alone.intermediate_size), (None, 48));
    assert!(alone.layers.iter().all(|layer| !layer.has_experts()));

    // Both beside each other, and a factor of each product; in what is normed, groups are by themselves.
    let both = |changes: Value| {
        let mut changes = changes;
        changes["mamba_n_heads"] = json!(16);
        let config = of_family(Family::FalconH1, changes);
        match config.layers[1].mixer {
            Mixer::Both(mamba) if config.layers[1].rope == Some(0) => (mamba, config),
            other => panic!("{other:?}"),
        }
    };
    let shape = MambaShape { heads: 16, head_dim: 64, groups: 2, state_dim: 256 };
    let expected = |output, norm_groups| MambaConfig { output, norm_groups, ..config_of(shape) };
    let (assumed, plain) = both(json!({"mamba_n_groups": 2}));
    assert_eq!(assumed, expected(OutputNorm::None, 1), "what transformers assumes");
    assert_eq!(plain.state_numbers(), 2 * (3 * (1024 + 4 * 256) + 1024 * 256));
    let (normed, _) = both(json!({"mamba_n_groups": 2, "mamba_rms_norm": true}));
    assert_eq!(normed, expected(OutputNorm::BeforeGate, 2));
    let (normed, _) = both(json!({"mamba_n_groups": 2, "mamba_rms_norm": true, "mamba_norm_before_gate": false}));
    assert_eq!(normed, expected(OutputNorm::AfterGate, 2));
    let (narrow, _) = both(json!({"mamba_d_ssm": null, "mamba_d_head": "auto"}));
    assert_eq!(narrow.shape.head_dim, 16, "mamba_expand times hidden_size");
    let (scaled, config) = both(json!({"ssm_in_multiplier": 0.5, "ssm_multipliers": [1, 2, 3, 4, 5],
        "ssm_out_multiplier": 0.25, "attention_in_multiplier": 0.5, "key_multiplier": 3, "attention_out_multiplier": 6,
        "mlp_multipliers": [0.25, 0.5]}));
    assert_eq!((scaled.factors, scaled.output_factor), ([0.5, 1.0, 1.5, 2.0, 2.5], 0.25));
    assert_eq!(config.attention_scale, 0.75 * plain.attention_scale);
    assert_eq!(config.attention_output_multiplier, 3.0);
    assert_eq!(config.activation, Activation::ScaledSilu { inner: 0.25, outer: 0.5 });

    // Delta attention by key, or latent attention without rotation: of every fifth, ninth, .. layer, or listed.
    let kimi = |changes| of_family(Family::KimiLinear, changes);
    let letters_of = |config: &ModelConfig| -> String {
        let letter = |layer: &LayerConfig| match (layer.mixer, layer.rope) {
            (Mixer::Latent(latent), None) if !latent.neighbours => 'L',
            (Mixer::Delta(delta), None) if delta.shape.by_key => 'D',
            other => panic!("{other:?}"),
        };
        config.layers.iter().map(letter).collect()
    };
    assert_eq!(letters_of(&kimi(json!({"num_hidden_layers": 6}))), "DDDDLD", "what transformers assumes");
    let published = json!({"head_dim": 32, "num_heads": 3, "short_conv_kernel_size": 3, "full_attn_layers": [2],
        "kda_layers": [1]});
    let config = kimi(json!({"linear_attn_config": published, "model_max_length": 77, "num_experts": 6,
        "num_experts_per_token": 3, "moe_renormalize": false, "num_expert_group": 2, "topk_group": 1,
        "num_shared_experts": 2}));
    assert_eq!((letters_of(&config).as_str(), config.max_position_embeddings), ("DL", 77));
    let shape = DeltaShape { key_heads: 3, value_heads: 3, key_dim: 32, value_dim: 32, by_key: true };
    assert_eq!(config.layers[0].mixer, Mixer::Delta(DeltaConfig { shape, taps: 3, by_key_head: false }));
    assert_eq!(config.state_numbers(), 2 * 3 * 96 + 3 * 32 * 32);
    let scores = Scores::Sigmoid { groups: 2, kept_groups: 1, sum_eps: 1e-20, factor: 2.446 };
    let shared = Some(SharedExpertConfig { width: 128, gated: false });
    let rule = RoutingRule { top_k: 3, over_chosen: false, scores };
    assert_eq!(config.experts, Some(experts(6, 64, rule, shared)));

    // Layers that are one block each, by names or by letters.
    let letters = |config: &ModelConfig| -> String {
        let letter = |layer: &LayerConfig| match (layer.mixer, layer.feed) {
            (Mixer::Attention, FeedForward::None) => '*',
            (Mixer::Mamba(_), FeedForward::None) => 'M',
            (Mixer::None, FeedForward::Dense) => '-',
            (Mixer::None, FeedForward::Experts) => 'E',
            other => panic!("{other:?}"),
        };
        config.layers.iter().map(letter).collect()
    };
    let single = |changes: Value| {
        let mut changes = changes;
        changes["moe_shared_expert_intermediate_size"] = json!(40);
        of_family(Family::NemotronH, changes)
    };
    let names = json!({"layer_types": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": 4});
    assert_eq!(letters(&single(names)), "ME*-");
    let config = single(json!({"hybrid_override_pattern": "*EM", "num_hidden_layers": 3, "moe_latent_size": 24}));
    assert_eq!(letters(&config), "*EM");
    let scores = Scores::Sigmoid { groups: 1, kept_groups: 1, sum_eps: 1e-20, factor: 1.0 };
    let shared = Some(SharedExpertConfig { width: 40, gated: false });
    let rule = RoutingRule { top_k: 2, over_chosen: true, scores };
    assert_eq!(config.experts, Some(ExpertConfig { latent: Some(24), ..experts(8, 64, rule, shared) }));
    let shape = MambaShape { heads: 128, head_dim: 64, groups: 8, state_dim: 128 };
    let assumed = MambaConfig { norm_groups: 8, ..config_of(shape) };
    assert_eq!(config.layers[2].mixer, Mixer::Mamba(assumed), "what transformers assumes");
    assert_eq!(alone.layer_parameters(), 2 * (4 * 128 * 128 + 3 * 128 * 48));
    let multipliers = json!({"residual_multiplier": 0.25, "embedding_multiplier": 12});
    assert_eq!((of(multipliers.clone()).residual_multiplier, of(multipliers).embedding_multiplier), (0.25, 12.0));
}

#[test]
fn fields_of_convolutions_and_routers_are_checked() {
    let error = |family: Family, mut changes: Value| {
        let (architecture, _) = ARCHITECTURES.into_iter().find(|(_, other)| *other == family).unwrap();
        changes["architectures"] = json!([architecture]);
        for (name, value) in [("num_experts", 8), ("n_routed_experts", 8), ("moe_intermediate_size", 64)] {
            if changes.get(name).is_none() {
                changes[name] = json!(value);
            }
        }
        if changes.get("num_experts_per_tok").is_none() {
            changes["num_experts_per_tok"] = json!(2);
        }
        config(changes).unwrap_err()
    };
    let mamba = |mut changes: Value| {
        changes["layer_types"] = json!(["mamba", "attention"]);
        if changes.get("mamba_n_heads").is_none() {
            changes["mamba_n_heads"] = json!(8);
        }
        changes
    };
    let latent = |changes: Value| {
        let mut fields = json!({"kv_lora_rank": 64, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
            "first_k_dense_replace": 1, "n_routed_experts": 8, "rope_parameters": {"rope_type": "default"}});
        fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        fields
    };
    for (family, changes, expected) in [
        (Family::Lfm2, json!({"layer_types": ["conv", "conv"]}), "layer_types: no layer is attention"),
        (Family::Lfm2, json!({"layer_types": ["conv"]}), "layer_types: 1 entries for num_hidden_layers = 2"),
        (Family::Lfm2, json!({"layer_types": ["conv", "mamba"]}), "layer_types: \"mamba\" is not supported"),
        (Family::Lfm2, json!({"full_attn_idxs": [2]}), "full_attn_idxs: \"2\" is not a layer of 2"),
        (Family::Lfm2, json!({"full_attn_idxs": ["a"]}), "is not a layer of 2"),
        (Family::Lfm2, json!({"conv_L_cache": 1}), "conv_L_cache: 1 is not a whole number from 2 to 8"),
        (Family::Lfm2, json!({"conv_L_cache": 9}), "conv_L_cache: 9 is not a whole number from 2 to 8"),
        (
            Family::Lfm2,
            json!({"hidden_size": 72, "head_dim": 16, "full_attn_idxs": [0]}),
            "hidden_size: 72 is no multiple of 16",
        ),
        (Family::Lfm2, json!({"block_ffn_dim_multiplier": 1e6}), "block_ffn_dim_multiplier: 1000000 makes the MLP"),
        (
            Family::Lfm2,
            json!({"hidden_act": "gelu_pytorch_tanh", "full_attn_idxs": [0]}),
            "models with states have silu only",
        ),
        (Family::Lfm2Moe, json!({"routed_scaling_factor": 0}), "routed_scaling_factor: 0 is not between"),
        (Family::Glm4Moe, json!({"n_group": 3}), "n_group: 3 groups of 8 experts"),
        // By the names of its own file.
        (Family::KimiLinear, latent(json!({"num_experts": 0})), "num_experts: 0 is not a whole number"),
        (
            Family::KimiLinear,
            latent(json!({"num_experts_per_token": 0})),
            "num_experts_per_token: 0 is not a whole number",
        ),
        (Family::KimiLinear, latent(json!({"num_expert_group": 3})), "num_expert_group: 3 groups of 8 experts"),
        (
            Family::PhiMoe,
            json!({"num_experts_per_tok": 3}),
            "num_experts_per_tok: 3 is not supported; SparseMixer chooses 2",
        ),
        (Family::Glm4Moe, json!({"n_group": 8}), "n_group: 8 groups of 8 experts"),
        (Family::Glm4Moe, json!({"n_group": 4, "topk_group": 5}), "topk_group: 5 of 4 groups of 2 experts"),
        (
            Family::Glm4Moe,
            json!({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}),
            "topk_group: 1 of 4 groups of 2 experts, for 3 experts of a token",
        ),
        (Family::Glm4Moe, json!({"n_shared_experts": 65}), "n_shared_experts: 65 is not a whole number"),
        (
            Family::Glm4Moe,
            json!({"n_shared_experts": 64, "moe_intermediate_size": 4096}),
            "n_shared_experts: 64 of width 4096 are more than 131072 wide",
        ),
        (Family::Glm4Moe, json!({"n_routed_experts": "(absent)"}), "n_routed_experts: missing"),
        (Family::DeepSeekV3, latent(json!({"kv_lora_rank": "(absent)"})), "kv_lora_rank: missing"),
        (
            Family::DeepSeekV3,
            latent(json!({"kv_lora_rank": 72})),
            "kv_lora_rank: 72 is not supported; multiples of 16 up to 512",
        ),
        (Family::DeepSeekV3, latent(json!({"kv_lora_rank": 528})), "kv_lora_rank: 528 is not supported"),
        (Family::DeepSeekV3, latent(json!({"qk_rope_head_dim": 80})), "qk_rope_head_dim: 80 is not supported"),
        (
            Family::DeepSeekV3,
            latent(json!({"num_attention_heads": 512, "v_head_dim": 512})),
            "v_head_dim: 512 heads of 512",
        ),
        (Family::DeepSeekV3, latent(json!({"attention_bias": true})), "attention_bias: true is not supported"),
        (Family::DeepSeekV3, latent(json!({"first_k_dense_replace": "(absent)"})), "first_k_dense_replace: missing"),
        (Family::DeepSeekV2, latent(json!({"topk_method": "noaux_tc"})), "topk_method: \"noaux_tc\" is not supported"),
        (Family::DeepSeekV2, latent(json!({"norm_topk_prob": true})), "norm_topk_prob: true is not supported"),
        (Family::Mistral4, latent(json!({"n_group": 2})), "n_group: groups of experts are not supported"),
        (Family::Glm4MoeLite, latent(json!({"mlp_layer_types": ["dense"]})), "mlp_layer_types: 1 entries"),
        (Family::GraniteHybrid, json!({"mamba_n_heads": 8}), "layer_types: no layer is attention"),
        (
            Family::GraniteHybrid,
            mamba(json!({"mamba_n_groups": 3})),
            "mamba_n_groups: 3 does not divide mamba_n_heads = 8",
        ),
        (Family::GraniteHybrid, mamba(json!({"mamba_d_head": 16})), "8 heads of width 16 are not mamba_expand times"),
        (
            Family::GraniteHybrid,
            mamba(json!({"mamba_n_heads": 32})),
            "mamba_d_head: 8 is not supported; multiples of 16",
        ),
        (Family::GraniteHybrid, mamba(json!({"mamba_d_state": 272})), "mamba_d_state: 272 is not supported"),
        (Family::GraniteHybrid, mamba(json!({"mamba_d_conv": 9})), "mamba_d_conv: 9 is not a whole number from 2 to 8"),
        (Family::GraniteHybrid, mamba(json!({"mamba_proj_bias": true})), "mamba_proj_bias: true is not supported"),
        (Family::GraniteHybrid, mamba(json!({"time_step_limit": [0.0, 0.1]})), "time_step_limit: finite limits"),
        (Family::GraniteHybrid, mamba(json!({"position_embedding_type": "alibi"})), "rope and nope are"),
        (Family::GraniteHybrid, mamba(json!({"num_local_experts": 0})), "shared_intermediate_size: missing"),
        (Family::KimiLinear, latent(json!({"mla_use_nope": false})), "mla_use_nope: false is not supported"),
        (Family::KimiLinear, latent(json!({"moe_router_activation_func": "softmax"})), "\"softmax\" is not supported"),
        (
            Family::KimiLinear,
            latent(json!({"linear_attn_config": {"full_attn_layers": [0]}})),
            "linear_attn_config.full_attn_layers: \"0\" is no layer",
        ),
        (Family::KimiLinear, latent(json!({"linear_head_dim": 24})), "linear_head_dim: heads of width 24"),
        (
            Family::KimiLinear,
            latent(json!({"layer_types": ["linear_attention", "linear_attention"]})),
            "no layer is attention",
        ),
        (
            Family::FalconH1,
            json!({"mamba_d_ssm": 512, "mamba_d_head": 32}),
            "128 heads of width 32 are not mamba_d_ssm = 512",
        ),
        (
            Family::FalconH1,
            json!({"mamba_n_heads": 16, "ssm_multipliers": [1]}),
            "ssm_multipliers: 1 numbers; expected are 5",
        ),
        (Family::FalconH1, json!({"mamba_n_heads": 16, "key_multiplier": 0}), "key_multiplier: 0 is not between"),
        (
            Family::FalconH1,
            json!({"mamba_n_heads": 16, "projectors_bias": true}),
            "projectors_bias: true is not supported",
        ),
        (Family::NemotronH, json!({"layer_types": null}), "layers_block_type: missing"),
        (Family::NemotronH, json!({"hybrid_override_pattern": "*?"}), "hybrid_override_pattern: \"?\" is none of"),
        (Family::NemotronH, json!({"hybrid_override_pattern": "*-M"}), "3 layers; num_hidden_layers = 2"),
        (Family::NemotronH, json!({"hybrid_override_pattern": "--"}), "no layer is attention"),
        (Family::NemotronH, json!({"layer_types": ["attention", "cross"]}), "layer_types: \"cross\" is not supported"),
        (
            Family::NemotronH,
            json!({"hybrid_override_pattern": "*M", "use_bias": true}),
            "use_bias: true is not supported",
        ),
        (
            Family::NemotronH,
            json!({"hybrid_override_pattern": "*M", "mamba_hidden_act": "gelu"}),
            "mamba_hidden_act: models with states have silu only",
        ),
    ] {
        let said = error(family, changes.clone());
        assert!(said.contains(expected), "{family} {changes}: {said}");
    }
}

/// Of a layer of Gemma 4: its window, the width of its heads, those that have keys, where these are, and its MLP.
type OfLayer = (Option<usize>, usize, usize, [usize; 2], usize);

fn layers_of(config: &ModelConfig) -> Vec<OfLayer> {
    let of = |layer: &LayerConfig| {
        let LayerConfig { heads, cache, .. } = *layer;
        let own = if heads.queries_only { 0 } else { heads.num_kv_heads };
        (layer.window, heads.head_dim, own, [cache.group, cache.layer], layer.mlp_width)
    };
    config.layers.iter().map(of).collect()
}

/// Four layers of Gemma 4, of which the first and the third have a window.
fn four_layers(changes: &Value) -> Result<ModelConfig, String> {
    let mut fields = json!({"architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 4, "num_key_value_heads": 2,
        "head_dim": 64, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]});
    fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config(fields)
}

#[test]
fn layers_have_heads_of_their_own_and_read_the_keys_of_others() {
    let of = |changes: Value| four_layers(&changes).unwrap();
    let published = json!({"global_head_dim": 128, "num_global_key_value_heads": 1, "attention_k_eq_v": true});
    let expected = [
        (Some(9), 64, 2, [0, 0], 256),
        (None, 128, 1, [1, 0], 256),
        (Some(9), 64, 2, [0, 1], 256),
        (None, 128, 1, [1, 1], 256),
    ];
    let config = of(published);
    assert_eq!(layers_of(&config), expected);
    assert_eq!(config.layers.iter().map(|layer| layer.values_are_keys).collect::<Vec<_>>(), [false, true, false, true]);
    let listed = json!({"attention_k_eq_v": true, "per_layer_config": {
        "01": {"head_dim": 128, "num_key_value_heads": 1}, "3": {"head_dim": 128, "num_key_value_heads": 1}}});
    assert_eq!(layers_of(&of(listed)), expected, "as transformers writes it now");
    let cache = config.cache_shape(KvDtype::Bf16, 3, 32);
    let groups: Vec<_> = cache.groups.iter().map(|group| (group.layers, group.num_kv_heads, group.head_dim)).collect();
    assert_eq!(groups, [(2, 2, 64), (2, 1, 128)]);
    assert_eq!(cache.block_bytes(), 32 * 4 * (2 * 2 * 64 + 2 * 128));
    assert_eq!(cache.bytes(), 3 * cache.block_bytes());
    // Without the flag the number of heads is that of other layers, and without a field they are 512 wide.
    assert_eq!(layers_of(&of(json!({"num_global_key_value_heads": 1})))[1], (None, 512, 2, [1, 0], 256));

    let shared = of(json!({"global_head_dim": 128, "num_kv_shared_layers": 2, "use_double_wide_mlp": true}));
    let expected = [
        (Some(9), 64, 2, [0, 0], 256),
        (None, 128, 2, [1, 0], 256),
        (Some(9), 64, 0, [0, 0], 512),
        (None, 128, 0, [1, 0], 512),
    ];
    assert_eq!(layers_of(&shared), expected, "the last two read the keys of the first two");
    assert_eq!(shared.attention_flops(1), 4 * 2 * (4 * 64 + 4 * 128), "every layer attends");
    assert_eq!(shared.shape().kv_values, 2 * (2 * 64 + 2 * 128), "two layers keep something");

    let input = |changes| of(changes).layer_input.map(|input| (input.width, input.vocab_size));
    assert_eq!(input(json!({})), Some((256, 262_144)), "what transformers assumes");
    assert_eq!(input(json!({"hidden_size_per_layer_input": 0})), None);
    let stated = json!({"hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 2000});
    assert_eq!(input(stated.clone()), Some((24, 2000)));
    assert_eq!(of(stated).row_table_parameters(), 2000 * 24 * 4);
    let unified = family("Gemma4UnifiedForCausalLM", json!({}));
    assert_eq!((unified.layer_input, unified.layers[0].window), (None, Some(1024)));
}

#[test]
fn layers_that_cannot_be_are_refused() {
    for (changes, expected) in [
        (json!({"num_kv_shared_layers": 4}), "num_kv_shared_layers: 4 of 4 layers; the first needs keys of its own"),
        (json!({"num_kv_shared_layers": 3}), "num_kv_shared_layers: layer 1 is to read the keys of an earlier one"),
        (json!({"global_head_dim": 520}), "global_head_dim: heads of width 520; multiples of 16 up to 512"),
        (json!({"per_layer_config": {"3": {"head_dim": 40}}}), "per_layer_config.3.head_dim: heads of width 40"),
        (json!({"num_global_key_value_heads": 3, "attention_k_eq_v": true}), "num_global_key_value_heads: 3 for 4"),
        (json!({"vocab_size_per_layer_input": 7}), "vocab_size_per_layer_input: 7 is less than vocab_size"),
        (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention: \"all\" is not supported"),
        (
            json!({"per_layer_config": {"1": {"head_dim": 128}, "3": {"head_dim": 64}}}),
            "heads of width 128 and 64; one",
        ),
        (
            json!({"num_kv_shared_layers": 2, "per_layer_config": {
                "1": {"head_dim": 128}, "3": {"head_dim": 128, "num_key_value_heads": 1}}}),
            "num_kv_shared_layers: layer 3 has 1 key heads of width 128, and layer 1, whose keys it reads, 2 of width 128",
        ),
        (json!({"per_layer_config": {"0": {"head_dim": 128}}}), "per_layer_config.\"0\": is no layer that sees all"),
        (json!({"per_layer_config": {"9": {"head_dim": 128}}}), "per_layer_config.\"9\": is no layer that sees all"),
        (json!({"per_layer_config": {"3": {"sliding_window": 2}}}), "per_layer_config.3.\"sliding_window\": differs"),
    ] {
        let error = four_layers(&changes).expect_err("refused");
        assert!(error.contains(expected), "{changes}: {error}");
    }
}

#[test]
fn a_share_of_pairs_turns_with_the_frequencies_of_the_whole_head() {
    let ropes = |changes: Value| four_layers(&changes).unwrap().ropes;
    let proportional = |turning, factor| RopeScaling::Proportional { turning, factor };
    let assumed = ropes(json!({"global_head_dim": 96}));
    assert_eq!((assumed[0].theta, &assumed[0].scaling, assumed[0].rotary_dim), (1e6, &proportional(12, 1.0), 96));
    assert_eq!((assumed[1].theta, &assumed[1].scaling, assumed[1].rotary_dim), (1e4, &RopeScaling::None, 64));
    let stated = ropes(json!({"global_head_dim": 96, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.3, "rope_theta": 1e5, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}));
    assert_eq!((stated[0].theta, &stated[0].scaling, stated[1].theta), (1e5, &proportional(14, 2.0), 500.0));
    let frequencies = proportional(2, 2.0).inv_freq(8, 10_000.0, 1);
    assert_eq!(frequencies, [0.5, 0.05, 0.0, 0.0], "exponents of eight numbers, though four turn");
}
