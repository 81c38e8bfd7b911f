//! What passes ask of a machine, by a model's configuration: experts, windows, steps that mix both phases.

use kernels::{KvDtype, WeightClass};
use model::ModelConfig;
use roofline::{Demands, ModelShape, PassWork};

#[test]
fn a_pass_reads_the_experts_that_its_rows_go_to() {
    let config = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "num_local_experts": 8,
        "num_experts_per_tok": 2}"#;
    let config = ModelConfig::parse(config).expect("a good configuration");
    let (weights, weight_bytes, expert_bytes) = (WeightClass::Bf16, 1000, 800);
    let demands = Demands {
        shape: config.shape(),
        weights,
        weight_bytes,
        expert_bytes,
        kv_bytes_per_token: 0,
        kv_dtype: KvDtype::Bf16,
    };
    // One row goes to 2 of 8; a second one meets them again with the same odds.
    assert_eq!(demands.decode(1, 1, 0.0).bytes, 200.0 + 0.25 * 800.0);
    assert_eq!(demands.decode(10, 20, 0.0).bytes, 10.0 * (200.0 + (1.0 - 0.75 * 0.75) * 800.0));
    let prefill = demands.prefill(0, 512, 256).bytes;
    assert!((1999.0..=2000.0).contains(&prefill), "two chunks that read everything: {prefill}");
    let dense = Demands { shape: ModelShape { experts: None, ..demands.shape.clone() }, expert_bytes: 0, ..demands };
    assert_eq!(dense.decode(1, 1, 0.0).bytes, 1000.0);
}

#[test]
fn what_an_int4_model_holds_in_int8() {
    let (hidden, mlp) = (64, 96);
    // Of three layers: keys and values that queries share, o of narrow models, the first layer's down, the last one's
    // MLP.
    for (family, hidden, kv_heads, wanted) in [
        ("llama", hidden, 2, 3 * (2 * 32 * hidden + 64 * hidden) + 4 * mlp * hidden),
        ("llama", hidden, 4, 3 * 64 * hidden + 4 * mlp * hidden),
        ("llama", 2048, 2, 3 * 2 * 32 * 2048 + 4 * mlp * 2048),
        ("mixtral", hidden, 2, 3 * (2 * 32 * hidden + 64 * hidden)),
    ] {
        let config = format!(
            r#"{{"model_type": "{family}", "hidden_size": {hidden}, "intermediate_size": {mlp}, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": {kv_heads}, "head_dim": 16, "vocab_size": 100,
            "max_position_embeddings": 512, "num_local_experts": 8, "num_experts_per_tok": 2}}"#
        );
        let config = ModelConfig::parse(&config).expect("a good configuration");
        assert_eq!(config.wide_parameters(), wanted, "{family} {hidden} {kv_heads}");
        let (layers, head) = (config.layer_parameters(), config.head_parameters());
        let bytes = config.shape().demands(WeightClass::Int4, KvDtype::Bf16).weight_bytes as u64;
        assert_eq!(bytes, (layers - wanted) * 17 / 32 + wanted + head, "{family} {hidden} {kv_heads}");
    }
}

#[test]
fn attention_is_counted_as_far_as_a_layer_sees() {
    let demands = |window: &str| {
        let config = format!(
            r#"{{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 32,
            "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "sliding_window": {window}}}"#
        );
        let config = ModelConfig::parse(&config).expect("a good configuration");
        Demands {
            shape: config.shape(),
            weights: WeightClass::Bf16,
            weight_bytes: 0,
            expert_bytes: 0,
            kv_bytes_per_token: 1,
            kv_dtype: KvDtype::Bf16,
        }
    };
    let (all, windowed) = (demands("null"), demands("8"));
    let tokens = |work: PassWork| (work.attention_flops / all.shape.pair_flops as f64, work.bytes);
    // One layer of two sees 8 tokens. Four rows from position 20: 21 + 22 + 23 + 24, and 24 fetched once.
    assert_eq!(tokens(all.prefill(20, 4, 4)), (90.0, 24.0));
    assert_eq!(tokens(windowed.prefill(20, 4, 4)), ((90.0 + 4.0 * 8.0) / 2.0, (24.0 + 11.0) / 2.0));
    // From position 5 the window fills up: 6 + 7 + 8 + 8; in chunks of two, 7 and 9 are fetched, or 7 and 9.
    assert_eq!(tokens(all.prefill(5, 4, 2)), (30.0, 16.0));
    assert_eq!(tokens(windowed.prefill(5, 4, 2)), ((30.0 + 29.0) / 2.0, (16.0 + 16.0) / 2.0));
    assert_eq!(tokens(all.decode(3, 3, 60.0)), (60.0, 60.0));
    assert_eq!(tokens(windowed.decode(3, 3, 60.0)), ((60.0 + 24.0) / 2.0, (60.0 + 24.0) / 2.0));
    assert_eq!(tokens(windowed.decode(3, 3, 12.0)), (12.0, 12.0), "shorter than the window");
}

#[test]
fn a_step_asks_what_its_parts_ask_with_one_pass_over_the_weights() {
    let config = r#"{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
        "head_dim": 32, "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
        "sliding_window": 8}"#;
    let config = ModelConfig::parse(config).expect("a good configuration");
    let demands = Demands {
        shape: config.shape(),
        weights: WeightClass::Int8,
        weight_bytes: 1000,
        expert_bytes: 0,
        kv_bytes_per_token: 4,
        kv_dtype: KvDtype::Int8,
    };
    let none = || std::iter::empty();
    let prefill = demands.step(none(), [(5, 4)].into_iter(), 1);
    assert_eq!(prefill, demands.prefill(5, 4, 4));
    let decode = demands.step([(9, 1), (9, 1)].into_iter(), std::iter::empty(), 2);
    assert_eq!(decode, demands.decode(1, 2, 20.0));
    let both = demands.step([(9, 1), (9, 1)].into_iter(), [(5, 4)].into_iter(), 3);
    assert_eq!(both.flops(), prefill.flops() + decode.flops());
    assert_eq!(both.bytes, prefill.bytes + decode.bytes - 1000.0);
    // By phase: operations and keys are each one's own, the weights are shared by rows, 4 to 2.
    let [of_prefill, of_decode] = demands.step_by_phase([(9, 1), (9, 1)].into_iter(), [(5, 4)].into_iter(), [1, 2]);
    assert_eq!((of_prefill.flops(), of_decode.flops()), (prefill.flops(), decode.flops()));
    let close = |got: f64, wanted: f64| assert!((got - wanted).abs() < 1e-9, "{got} is not {wanted}");
    close(of_prefill.bytes, prefill.bytes - 1000.0 + 1000.0 * 4.0 / 6.0);
    close(of_prefill.bytes + of_decode.bytes, both.bytes);
    let [alone, none_there] = demands.step_by_phase(none(), [(5, 4)].into_iter(), [1, 0]);
    assert_eq!((alone, none_there.flops(), none_there.bytes), (prefill, 0.0, 0.0));
}
