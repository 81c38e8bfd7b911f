"""Tiny encoders of every supported family, and what `transformers` gives for them.

    python oracle/encoders.py crates/model/tests/data/encoders            writes them
    python oracle/encoders.py --check crates/model/tests/data/encoders    makes them again and compares

Each case is a directory as `make.py` writes them, and beside it:

    oracle.json    the texts as token ids, with the segments of those that are pairs
    rows.f32       the last hidden rows of all texts, float32, [rows, hidden_size]; of a classifier there are none
    vectors.f32    a vector of each text: pooled, or the logits of the classes

All is computed in float32 from weights whose matrices are rounded to bfloat16.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import safetensors.torch
import torch
import transformers

import make

LENGTHS = [1, 2, 7, 33, 300]

BERT = {
    "model_type": "bert", "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 96, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 320, "num_attention_heads": 2, "num_hidden_layers": 2, "type_vocab_size": 2,
    "vocab_size": 130, "pad_token_id": 0, "hidden_dropout_prob": 0.1, "position_embedding_type": "absolute",
}
ROBERTA = {**BERT, "model_type": "xlm-roberta", "layer_norm_eps": 1e-5, "max_position_embeddings": 322, "pad_token_id": 1,
           "type_vocab_size": 1, "hidden_size": 48, "num_attention_heads": 3}
MODERN = {
    "model_type": "modernbert", "hidden_activation": "gelu", "hidden_size": 64, "intermediate_size": 72, "norm_eps": 1e-5,
    "max_position_embeddings": 400, "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 131,
    "global_attn_every_n_layers": 3, "local_attention": 12, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
    "cls_token_id": 2, "sep_token_id": 3, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
}
GEMMA = {
    "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 64, "intermediate_size": 96,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 400, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
    "num_hidden_layers": 3, "vocab_size": 132, "query_pre_attn_scalar": 32, "sliding_window": 10, "pad_token_id": 0,
    "bos_token_id": 2, "eos_token_id": 1, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
    "use_bidirectional_attention": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
# The fields of the published files, and those of transformers.
NOMIC = {"model_type": "nomic_bert", "n_embd": 64, "n_head": 2, "n_inner": 96, "n_layer": 2, "n_positions": 400,
         "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "activation_function": "swiglu",
         "type_vocab_size": 2, "vocab_size": 133, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False}
NOMIC_FIELDS = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 2,
                "max_position_embeddings": 400, "vocab_size": 133}
QWEN3 = {
    "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 400, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 2, "vocab_size": 134, "rope_theta": 1000000.0, "attention_bias": False, "pad_token_id": 0,
    "tie_word_embeddings": True,
}
LABELS = {"0": "entailment", "1": "neutral", "2": "contradiction"}

CASES = {
    # The mean, a product with tanh, length 1; pairs; names with a prefix.
    "bert": {"architectures": ["BertModel"], **BERT,
             "modules": {"pooling": "mean", "dense": 40, "normalize": True}},
    # A reranker: one logit.
    "bert-reranker": {"architectures": ["BertForSequenceClassification"], **BERT, "id2label": {"0": "LABEL_0"},
                      "hidden_act": "gelu_new"},
    # The first row; padding within a text keeps its position.
    "xlm-roberta": {"architectures": ["XLMRobertaModel"], **ROBERTA, "modules": {"pooling": "cls"}},
    "roberta-classifier": {"architectures": ["RobertaForSequenceClassification"], **ROBERTA, "model_type": "roberta",
                           "id2label": LABELS, "label2id": {name: int(i) for i, name in LABELS.items()}},
    # Windows of six on each side in two layers of four; without modules.
    "modernbert": {"architectures": ["ModernBertModel"], **MODERN},
    # Windows of five on each side in two layers of three; two products without biases.
    "embedding-gemma": {"architectures": ["Gemma3TextModel"], **GEMMA,
                        "modules": {"pooling": "mean", "dense": [96, 40], "normalize": True}},
    # Rotations and a gated MLP in BERT's layers; pairs.
    "nomic-bert": {"architectures": ["NomicBertModel"], **NOMIC, "modules": {"pooling": "mean"}},
    # A decoder whose last row is judged: by a matrix of its own, and by the logit of "yes" less that of "no".
    "qwen3-classifier": {"architectures": ["Qwen3ForSequenceClassification"], **QWEN3, "id2label": LABELS,
                         "label2id": {name: int(i) for i, name in LABELS.items()}},
    "qwen3-reranker": {"architectures": ["Qwen3ForCausalLM"], **QWEN3},
    # In the spelling of transformers 5, with every bias.
    "modernbert-classifier": {"architectures": ["ModernBertForSequenceClassification"], **MODERN,
                              "classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True,
                              "attention_bias": True, "mlp_bias": True, "id2label": LABELS,
                              "label2id": {name: int(i) for i, name in LABELS.items()},
                              "layer_types": ["sliding_attention", "full_attention"] * 2,
                              "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 80000.0},
                                                  "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}},
}


YES, NO = 77, 12


def words_of_reranker(directory):
    """A vocabulary in which two words are what the reranker looks for."""
    vocab = {"yes" if id == YES else "no" if id == NO else f"w{id}": id for id in range(QWEN3["vocab_size"])}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    made = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None, "decoder": None, "truncation": None, "padding": None, "model": model}
    (directory / "tokenizer.json").write_text(json.dumps(made) + "\n")


def published(weights):
    """Nomic's weights under the names of the published files."""
    names = {"embeddings.LayerNorm": "emb_ln", "layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj",
             "up_proj": "fc11", "gate_proj": "fc12", "down_proj": "fc2", "post_attention_layernorm": "norm1",
             "post_mlp_layernorm": "norm2"}
    found = {}
    for name, weight in weights.items():
        for theirs, own in names.items():
            name = name.replace(theirs, own)
        if "self_attn." not in name and not name.startswith("pooler."):
            found[name] = weight
    for layer in range(NOMIC["n_layer"]):
        parts = [weights[f"layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkv"]
        found[f"encoder.layers.{layer}.attn.Wqkv.weight"] = torch.cat(parts)
    return found


def random_weights(model, rng):
    weights = {}
    for name, tensor in sorted(model.state_dict().items()):
        if not tensor.is_floating_point():
            continue
        values = rng.standard_normal(tuple(tensor.shape), dtype=numpy.float32)
        if name.endswith("orm.weight"):
            values = numpy.float32(model.config.model_type != "gemma3_text") + numpy.float32(0.2) * values
        elif name.endswith(".bias"):
            values *= numpy.float32(0.3)
        elif "embeddings." not in name:
            values *= numpy.float32(1.2 / tensor.shape[-1] ** 0.5)
        weights[name] = torch.from_numpy(values)
    return weights


def write_modules(directory, modules, hidden_size, rng):
    """What sentence-transformers writes beside a model; returns what stands behind pooling."""
    names = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    modes = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden_size,
               **{f"pooling_mode_{field}": mode == modules["pooling"] for mode, field in modes.items()}}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling) + "\n")
    dense, width = [], hidden_size
    plain = isinstance(modules.get("dense"), list)  # no biases, nothing behind them
    for at, out in enumerate(modules.get("dense", []) if plain else [modules["dense"]] if "dense" in modules else []):
        path = f"{at + 2}_Dense"
        names.append((path, "sentence_transformers.models.Dense"))
        (directory / path).mkdir()
        kind = "linear.Identity" if plain else "activation.Tanh"
        config = {"in_features": width, "out_features": out, "bias": not plain,
                  "activation_function": f"torch.nn.modules.{kind}"}
        (directory / path / "config.json").write_text(json.dumps(config) + "\n")
        weight = rng.standard_normal((out, width), dtype=numpy.float32) / width ** 0.5
        tensors = {"linear.weight": torch.from_numpy(weight.astype(numpy.float32))}
        if not plain:
            tensors["linear.bias"] = torch.from_numpy(rng.standard_normal(out, dtype=numpy.float32))
        safetensors.torch.save_file(tensors, directory / path / "model.safetensors", {"format": "pt"})
        dense.append(tensors)
        width = out
    if modules.get("normalize"):
        names.append((f"{len(names)}_Normalize", "sentence_transformers.models.Normalize"))
    listed = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (path, kind) in enumerate(names)]
    (directory / "modules.json").write_text(json.dumps(listed) + "\n")
    return dense


def pooled(rows, modules, dense):
    row = rows[0] if modules["pooling"] == "cls" else rows.mean(0)
    for tensors in dense or []:
        row = tensors["linear.weight"].to(torch.bfloat16).to(torch.float32) @ row
        if "linear.bias" in tensors:
            row = torch.tanh(row + tensors["linear.bias"])
    return torch.nn.functional.normalize(row, dim=0) if modules.get("normalize") else row


def make_case(directory, name, spec):
    spec = dict(spec)
    modules = spec.pop("modules", None)
    seed = int.from_bytes(name.encode(), "little") % 2**32
    rng = numpy.random.default_rng(seed)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(spec, indent=1) + "\n")
    if name == "qwen3-reranker":
        words_of_reranker(directory)
    dense = write_modules(directory, modules, spec.get("hidden_size", 64), rng) if modules else None
    modules = modules or {"pooling": "mean"}
    config = transformers.AutoConfig.from_pretrained(directory)
    model_class = getattr(transformers, spec["architectures"][0])
    if name == "nomic-bert":
        config = transformers.NomicBertConfig(**NOMIC_FIELDS)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    weights = random_weights(model, rng)
    if spec.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    prefix = "bert." if name == "bert" else ""  # as in files that were saved with a head
    # Some files have float32, most are half as large.
    stored = torch.float32 if name in ("bert", "xlm-roberta") else torch.bfloat16
    weights = {tensor: weight.to(stored if weight.dim() >= 2 else torch.float32) for tensor, weight in weights.items()}
    stored = published(weights) if name == "nomic-bert" else weights
    make.write_weights(directory, {prefix + tensor: weight for tensor, weight in stored.items()}, 1)
    rounded = {tensor: weight.to(torch.bfloat16).to(torch.float32) if weight.dim() >= 2 else weight
               for tensor, weight in weights.items()}
    model.load_state_dict(rounded, strict=False)

    texts, rows, vectors = [], [], []
    for length in LENGTHS:
        tokens = [int(token) for token in rng.integers(2, config.vocab_size, length)]
        text = {"tokens": tokens}
        if name == "xlm-roberta" and length > 6:
            tokens[3] = config.pad_token_id
        inputs = {"input_ids": torch.tensor([tokens]), "attention_mask": torch.ones(1, length, dtype=torch.long)}
        if spec.get("type_vocab_size") == 2 and length > 6:
            text["types"] = [0] * (length // 3) + [1] * (length - length // 3)
            inputs["token_type_ids"] = torch.tensor([text["types"]])
        with torch.no_grad():
            output = model(**inputs)
        if name == "qwen3-reranker":
            vectors.append((output.logits[0, -1, YES] - output.logits[0, -1, NO]).reshape(1).numpy())
        elif "logits" in output:
            vectors.append(output.logits[0].numpy())
        else:
            rows.append(output.last_hidden_state[0].numpy())
            vectors.append(pooled(output.last_hidden_state[0], modules, dense).numpy())
        texts.append(text)
    (directory / "oracle.json").write_text(json.dumps({"seed": seed, "texts": texts}) + "\n")
    if rows:
        numpy.concatenate(rows).astype("<f4").tofile(directory / "rows.f32")
    numpy.concatenate(vectors).astype("<f4").tofile(directory / "vectors.f32")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing it")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        for name, spec in CASES.items():
            make_case(fresh / name, name, spec)
        if arguments.check:
            names = sorted({path.relative_to(tree) for tree in (arguments.directory, fresh)
                            for path in tree.rglob("*") if path.is_file()})
            found = list(make.differences_in(names, arguments.directory, fresh))
            print("\n".join(found) or f"oracle: {len(CASES)} encoders agree with transformers {transformers.__version__}")
            return 1 if found else 0
        for name in CASES:
            shutil.rmtree(arguments.directory / name, ignore_errors=True)
            shutil.copytree(fresh / name, arguments.directory / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
