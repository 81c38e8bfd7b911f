"""Tiny drafters in every layout that is read, and the logits that they give in float32.

    python oracle/drafts.py crates/model/tests/data/drafts            writes them
    python oracle/drafts.py --check crates/model/tests/data/drafts    makes them again and compares; exit status 1 when
                                                                      they differ

Each case is a directory with a drafter in the layout in which such drafters are published, its weights random from a
fixed seed, and beside it:

    drafts.json   the target (a case of oracle/make.py, or the drafter's own directory), token ids, and which rows count
    drafts.f32    the logits of these over the target's vocabulary, float32, little-endian; -inf where a token is not
                  drafted

What a drafter computes is written here in torch from the definitions of Medusa (FasterDecoding/Medusa), EAGLE-3
(SafeAILab/EAGLE, speculators) and next-token layers; the target is transformers', and layers like its own are too. As in oracle/make.py, matrices
are rounded to bfloat16 and everything else is float32. Rows whose two best logits nearly tie are left out:
they say nothing about an implementation that rounds activations.

Rows of Medusa: head by head, one for each token. Rows of the others: the first pass over `tokens[1:]` with the
target's features, then `steps` passes that follow the last row: its own best token, its own row as the feature.
"""

import argparse
import copy
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

MIN_MARGIN = 0.05  # between the two best logits, in standard deviations of the row
LENGTH = 48  # tokens; more than a cache block
STEPS = 3
TOLERANCE = 1e-4


def eagle3(target, layout, **more):
    return {"kind": "eagle3", "target": target, "layout": layout, **more}


CASES = {
    # The authors' layout, one layer a head, the target's head, which bends its logits; no configuration.
    "medusa": {"kind": "medusa", "target": "gemma2", "heads": 3, "layers": 1, "file": "medusa_lm_head.safetensors"},
    # Two layers a head, a matrix for each, under a longer name.
    "medusa-own": {"kind": "medusa", "target": "llama2", "heads": 2, "layers": 2, "prefix": "medusa_heads.",
                   "own": True, "config": {"medusa_num_heads": 2, "medusa_num_layers": 2, "hidden_size": 64}},
    # vLLM's layout: no biases, a matrix for each head over the most frequent tokens.
    "medusa-map": {"kind": "medusa", "target": "llama3", "heads": 2, "layers": 1, "vllm": True, "own": True, "map": 40,
                   "config": {"model_type": "medusa", "num_heads": 2, "num_hidden_layers": 1, "hidden_size": 72,
                              "vocab_size": 131, "truncated_vocab_size": 40}},
    # One matrix for all heads, in the file over all tokens, of which the map leaves some.
    "medusa-one": {"kind": "medusa", "target": "llama3", "heads": 3, "layers": 1, "vllm": True, "own": True, "map": 50,
                   "one": True, "config": {"model_type": "medusa", "original_lm_head": True, "hidden_size": 72}},
    # EAGLE-3 as its authors and SpecForge write it; layers by index in eagle_config.
    "eagle3-midlayer": eagle3("llama3", "midlayer", map=48, config={
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 72, "intermediate_size": 56,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5, "vocab_size": 131, "draft_vocab_size": 48, "rope_theta": 10000.0,
        "max_position_embeddings": 64, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}),
    # A norm for each tapped row, its own rows normed, no smaller vocabulary, an embedding of its own; another width.
    "eagle3-norms": eagle3("llama3", "midlayer", own_embedding=True, config={
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64, "target_hidden_size": 72,
        "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6, "vocab_size": 131, "fc_norm": True, "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [0, 2, 3]}),
    # speculators: two layers with norms of q and k, the residual stream from the normed feature.
    "eagle3-speculators": eagle3("llama3", "layers", map=48, config={
        "speculators_model_type": "eagle3", "draft_vocab_size": 48, "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "speculators_config": {"algorithm": "eagle3", "verifier": {
            "name_or_path": "example/llama3", "architectures": ["LlamaForCausalLM"]}},
        "transformer_layer_config": {
            "model_type": "qwen3", "hidden_size": 72, "intermediate_size": 40, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 32, "num_hidden_layers": 2, "rms_norm_eps": 1e-6, "vocab_size": 131,
            "max_position_embeddings": 512, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}),
    # speculators: one norm over all tapped rows, two of them, and biases.
    "eagle3-bias": eagle3("llama2", "layers", map=100, config={
        "speculators_model_type": "eagle3", "draft_vocab_size": 100, "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2],
        "transformer_layer_config": {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 40, "num_attention_heads": 2,
            "num_key_value_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "vocab_size": 128,
            "max_position_embeddings": 512, "attention_bias": True}}),
    # A checkpoint with a next-token layer of its own.
    "mimo": {"kind": "mtp", "target": None, "config": {
        "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "hidden_act": "silu", "hidden_size": 64,
        "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "vocab_size": 128, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 640000.0,
        "tie_word_embeddings": False, "attention_bias": True, "num_nextn_predict_layers": 1,
        "use_sliding_window": False, "bos_token_id": 1, "eos_token_id": 2}},
    # Latent attention and experts behind the last layer, read behind the final norm.
    "deepseek-v3": {"kind": "mtp", "target": None, "of": "deepseek-v3", "prefix": "model.layers.3.",
                    "names": ["eh_proj", "enorm", "hnorm", "shared_head.norm", ""], "layer": 2,
                    "more": {"num_nextn_predict_layers": 1}},
    # Gates of attention's output, norms around zero, a rotation of a part of a head, beside layers with states.
    "qwen3.5": {"kind": "mtp", "target": None, "of": "qwen3.5", "prefix": "mtp.",
                "names": ["fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0."], "layer": 3,
                "more": {}},
}


class Weights:
    """Random tensors under the names of the file, drawn in the order in which they are asked for."""

    def __init__(self, rng):
        self.rng, self.tensors = rng, {}

    def matrix(self, name, rows, columns, gain=1.0):
        values = self.rng.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(gain / columns**0.5)
        return self.add(name, values)

    def norm(self, name, width):
        return self.add(name, 1 + numpy.float32(0.2) * self.rng.standard_normal(width, dtype=numpy.float32))

    def bias(self, name, width):
        return self.add(name, numpy.float32(0.3) * self.rng.standard_normal(width, dtype=numpy.float32))

    def add(self, name, values):
        stored = torch.from_numpy(values).to(torch.bfloat16)
        self.tensors[name] = stored
        return stored.to(torch.float32)

    def ids(self, name, values, dtype=torch.int64):
        self.tensors[name] = torch.tensor(values, dtype=dtype)


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def turn(x, positions, theta):
    """Rotates `[rows, heads, width]` by position."""
    half = x.shape[-1] // 2
    angles = positions[:, None].double() * theta ** (-torch.arange(half).double() / half)
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer:
    """A decoder layer with its keys and values. `wide`: its projections read twice the width."""

    def __init__(self, weights, prefix, config, wide=False, input_norm=True, qkv_bias=False, o_bias=False):
        hidden, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.width = config.get("head_dim", hidden // self.heads)
        rope = config.get("rope_parameters", config)
        self.theta = rope.get("rope_theta", 10000.0)
        read = 2 * hidden if wide else hidden
        self.projections = []
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            matrix = weights.matrix(f"{prefix}self_attn.{name}_proj.weight", heads * self.width, read, 1.2)
            bias = weights.bias(f"{prefix}self_attn.{name}_proj.bias", heads * self.width) if qkv_bias else 0
            self.projections.append((matrix, bias, heads))
        self.o = weights.matrix(f"{prefix}self_attn.o_proj.weight", hidden, self.heads * self.width, 1.2)
        self.o_bias = weights.bias(f"{prefix}self_attn.o_proj.bias", hidden) if o_bias else 0
        self.head_norms = None
        if config.get("model_type") == "qwen3":
            self.head_norms = [weights.norm(f"{prefix}self_attn.{part}_norm.weight", self.width) for part in "qk"]
        self.input_norm = weights.norm(f"{prefix}input_layernorm.weight", hidden) if input_norm else None
        self.post_norm = weights.norm(f"{prefix}post_attention_layernorm.weight", hidden)
        inner = config["intermediate_size"]
        self.gate = weights.matrix(f"{prefix}mlp.gate_proj.weight", inner, hidden, 1.2)
        self.up = weights.matrix(f"{prefix}mlp.up_proj.weight", inner, hidden, 1.2)
        self.down = weights.matrix(f"{prefix}mlp.down_proj.weight", hidden, inner, 1.2)
        self.keys, self.values = [], []

    def __call__(self, x, read, positions):
        """`x`: the residual stream `[rows, hidden]`. `read`: what the projections read."""
        rows = len(positions)
        q, k, v = ((read @ matrix.T + bias).view(rows, heads, self.width) for matrix, bias, heads in self.projections)
        if self.head_norms:
            q, k = rms(q, self.head_norms[0], self.eps), rms(k, self.head_norms[1], self.eps)
        q, k = turn(q, positions, self.theta), turn(k, positions, self.theta)
        self.keys.append(k)
        self.values.append(v)
        keys, values = torch.cat(self.keys), torch.cat(self.values)
        group = self.heads // self.kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("rhd,thd->hrt", q, keys) / self.width**0.5
        seen = torch.arange(len(keys))[None, :] <= torch.arange(len(keys) - rows, len(keys))[:, None]
        scores = scores.masked_fill(~seen[None], float("-inf")).softmax(-1)
        x = x + torch.einsum("hrt,thd->rhd", scores, values).reshape(rows, -1) @ self.o.T + self.o_bias
        normed = rms(x, self.post_norm, self.eps)
        return x + (torch.nn.functional.silu(normed @ self.gate.T) * (normed @ self.up.T)) @ self.down.T

    def alone(self, x, positions):
        return self(x, x if self.input_norm is None else rms(x, self.input_norm, self.eps), positions)


def scattered(logits, ids, vocab):
    if ids is None:
        return logits
    out = torch.full((len(logits), vocab), float("-inf"))
    out[:, ids] = logits
    return out


def drafted_ids(rng, count, vocab):
    return None if count is None else sorted(int(id) for id in rng.choice(vocab, count, replace=False))


def rows_of(out):
    """What a layer of transformers gives, as `[rows, hidden]`."""
    out = out[0] if isinstance(out, tuple) else out
    return out.view(-1, out.shape[-1])


class Target:
    def __init__(self, directory):
        config = transformers.AutoConfig.from_pretrained(directory)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.dim() >= 2:
                    parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))
        self.config = config
        self.taps = {}
        layers = self.model.model.layers
        # What a layer gets, and what the last one leaves.
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda _, args, index=index: self.taps.__setitem__(index, args[0][0]))
        layers[-1].register_forward_hook(lambda _, __, out: self.taps.__setitem__(len(layers), rows_of(out)))

    def run(self, tokens):
        """What the head reads, `[rows, hidden]`; `taps` are there afterwards."""
        with torch.no_grad():
            self.normed = self.model.model(torch.tensor([tokens])).last_hidden_state[0]
            return self.normed

    @property
    def embedding(self):
        return self.model.model.embed_tokens.weight.detach()

    def head(self, hidden):
        logits = hidden @ self.model.lm_head.weight.detach().T
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)


def medusa(spec, target, weights, rng, tokens):
    hidden_size, vocab = target.config.hidden_size, target.config.vocab_size
    ids = drafted_ids(rng, spec.get("map"), vocab)
    prefix = spec.get("prefix", "")
    hidden, rows, shared = target.run(tokens), [], None
    for head in range(spec["heads"]):
        x = hidden
        for layer in range(spec["layers"]):
            name = f"blocks.{head}.layers.{layer}" if spec.get("vllm") else f"{prefix}{head}.{layer}.linear"
            matrix = weights.matrix(f"{name}.weight", hidden_size, hidden_size, 1.5)
            bias = 0 if spec.get("vllm") else weights.bias(f"{name}.bias", hidden_size)
            x = x + torch.nn.functional.silu(x @ matrix.T + bias)
        if not spec.get("own"):
            logits = target.head(x)
        elif spec.get("one"):
            if shared is None:
                shared = weights.matrix("lm_heads.0.weight", vocab, hidden_size, 2.0)
            logits = x @ shared[ids].T
        else:
            name = f"lm_heads.{head}" if spec.get("vllm") else f"{prefix}{head}.{spec['layers']}"
            logits = x @ weights.matrix(f"{name}.weight", len(ids) if ids else vocab, hidden_size, 2.0).T
        rows.append(scattered(logits, ids, vocab))
    if ids:
        weights.ids("token_map", ids)
    return torch.cat(rows)


def eagle3_drafter(spec, target, weights, rng):
    config, root = spec["config"].get("transformer_layer_config", spec["config"]), spec["config"]
    hidden, targets, vocab = config["hidden_size"], target.config.hidden_size, target.config.vocab_size
    eps = config["rms_norm_eps"]
    taps = root.get("eagle_aux_hidden_state_layer_ids")
    if taps is None:
        taps = [index + 1 for index in root["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    ids = drafted_ids(rng, spec.get("map"), vocab)
    tokens = len(ids) if ids else vocab
    bias = config.get("attention_bias", False)
    first = "midlayer." if spec["layout"] == "midlayer" else "layers.0."
    layers = [Layer(weights, first, config, wide=True, input_norm=False, qkv_bias=bias, o_bias=bias)]
    layers += [Layer(weights, f"layers.{index}.", config, qkv_bias=bias, o_bias=bias)
               for index in range(1, config["num_hidden_layers"])]
    embedding_norm = weights.norm(f"{first}input_layernorm.weight", hidden)
    feature_norm = weights.norm(f"{first}hidden_norm.weight", hidden)
    fc = weights.matrix("fc.weight", hidden, len(taps) * targets)
    whole = weights.norm("input_norm.weight", len(taps) * targets) if root.get("norm_before_fc") else None
    each = [weights.norm(f"fc_norm.{tap}.weight", targets) for tap in range(len(taps))] if root.get("fc_norm") else None
    norm = weights.norm("norm.weight", hidden)
    head = weights.matrix("lm_head.weight", tokens, hidden, 2.0)
    embedding = target.embedding
    if spec.get("own_embedding"):
        embedding = weights.matrix("embed_tokens.weight", vocab, hidden, 4.0)
    if ids:
        weights.ids("d2t", [id - index for index, id in enumerate(ids)])
        weights.ids("t2d", [id in ids for id in range(vocab)], torch.bool)

    def feature():
        rows = [target.taps[tap] for tap in taps]
        if each:
            rows = [rms(row, weight, eps) for row, weight in zip(rows, each)]
        rows = torch.cat(rows, -1)
        if whole is not None:
            rows = rms(rows, whole, eps)
        return rows @ fc.T

    def step(token_ids, feature, positions):
        normed = rms(feature, feature_norm, eps)
        read = torch.cat([rms(embedding[token_ids], embedding_norm, eps), normed], -1)
        x = layers[0](normed if root.get("norm_before_residual") else feature, read, positions)
        for layer in layers[1:]:
            x = layer.alone(x, positions)
        out = rms(x, norm, eps)
        return scattered(out @ head.T, ids, vocab), out if root.get("norm_output") else x

    return feature, step


def mtp_drafter(spec, target, weights, rng):
    config, prefix = spec["config"], "model.mtp_layers.0."
    hidden, eps = config["hidden_size"], config["rms_norm_eps"]
    layer = Layer(weights, prefix, config, qkv_bias=True)
    token_norm = weights.norm(f"{prefix}token_layernorm.weight", hidden)
    hidden_norm = weights.norm(f"{prefix}hidden_layernorm.weight", hidden)
    final_norm = weights.norm(f"{prefix}final_layernorm.weight", hidden)
    project = weights.matrix(f"{prefix}input_proj.weight", hidden, 2 * hidden)

    def feature():
        return target.taps[config["num_hidden_layers"]]

    def step(token_ids, feature, positions):
        both = [rms(feature, hidden_norm, eps), rms(target.embedding[token_ids], token_norm, eps)]
        x = layer.alone(torch.cat(both, -1) @ project.T, positions)
        out = rms(x, final_norm, eps)
        return target.head(out), out

    return feature, step


class LikeTarget:
    """A layer of transformers' own class, like one of the target's."""

    def __init__(self, spec, target, weights):
        model, prefix = target.model.model, spec["prefix"] + spec["names"][-1]
        self.model, like = model, model.layers[spec["layer"]]
        self.layer, self.eps = copy.deepcopy(like).eval(), target.config.rms_norm_eps
        shift = 0.0 if type(like.input_layernorm).__name__.startswith("Qwen3_5") else 1.0
        drawn = {}
        for name, tensor in sorted(self.layer.state_dict().items()):
            if name.endswith("e_score_correction_bias"):
                drawn[name] = torch.from_numpy(weights.rng.standard_normal(tensor.shape, dtype=numpy.float32))
            elif tensor.dim() == 1:
                noise = weights.rng.standard_normal(tensor.shape, dtype=numpy.float32)
                drawn[name] = torch.from_numpy(shift + numpy.float32(0.2) * noise).to(torch.bfloat16)
            else:
                scale = numpy.float32(1.2 / tensor.shape[-1] ** 0.5)
                drawn[name] = torch.from_numpy(scale * weights.rng.standard_normal(tensor.shape, dtype=numpy.float32))
                drawn[name] = drawn[name].to(torch.bfloat16)
        self.layer.load_state_dict({name: tensor.to(torch.float32) for name, tensor in drawn.items()})
        weights.tensors.update(make.apart({prefix + name: tensor for name, tensor in drawn.items()}, "deepseek"))
        self.inputs = []

    def alone(self, x, positions):
        """All rows so far are computed anew, and those of `x` are returned."""
        self.inputs.append(x)
        rows = torch.cat(self.inputs)[None]
        at = torch.arange(rows.shape[1])[None]
        hidden = torch.full((rows.shape[1], rows.shape[1]), float("-inf")).triu(1)[None, None]
        with torch.no_grad():
            out = self.layer(rows, position_embeddings=self.model.rotary_emb(rows, at), attention_mask=hidden,
                             position_ids=at)
        return rows_of(out)[-len(x):]


def own_mtp(spec, target, weights, rng):
    """As the layer is written in transformers' `MtpLayer`, or, for Qwen3.5, as llama.cpp has it."""
    hidden, eps, prefix = target.config.hidden_size, target.config.rms_norm_eps, spec["prefix"]
    join, *norms, _ = spec["names"]
    layer = LikeTarget(spec, target, weights)
    around_zero = spec["of"].startswith("qwen3.5")

    def norm(name):
        noise = weights.rng.standard_normal(hidden, dtype=numpy.float32)
        stored = weights.add(f"{prefix}{name}.weight", (0 if around_zero else 1) + numpy.float32(0.2) * noise)
        return stored + 1 if around_zero else stored

    embedding_norm, feature_norm, output_norm = map(norm, norms)
    project = weights.matrix(f"{prefix}{join}.weight", hidden, 2 * hidden)

    def step(token_ids, feature, positions):
        both = [rms(target.embedding[token_ids], embedding_norm, eps), rms(feature, feature_norm, eps)]
        out = rms(layer.alone(torch.cat(both, -1) @ project.T, positions), output_norm, eps)
        return target.head(out), out

    return (lambda: target.normed), step


def followed(spec, target, weights, rng, tokens):
    make = {"eagle3": eagle3_drafter, "mtp": own_mtp if "of" in spec else mtp_drafter}[spec["kind"]]
    feature, step = make(spec, target, weights, rng)
    target.run(tokens[:-1])
    logits, own = step(tokens[1:], feature(), torch.arange(len(tokens) - 1))
    rows, chosen = [logits], []
    for index in range(STEPS):
        chosen.append(int(rows[-1][-1].argmax()))
        logits, own = step([chosen[-1]], own[-1:], torch.tensor([len(tokens) - 1 + index]))
        rows.append(logits)
    return torch.cat(rows), chosen


def mimo_target(directory, spec, weights):
    """Qwen2's tensors under the drafter's roof."""
    config = {**spec["config"], "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**config))
    for name, tensor in sorted(model.state_dict().items()):
        if name.endswith("norm.weight"):
            weights.norm(name, tensor.shape[0])
        elif name.endswith(".bias"):
            weights.bias(name, tensor.shape[0])
        elif "embed_tokens" in name:
            weights.matrix(name, *tensor.shape, tensor.shape[1] ** 0.5)
        else:
            weights.matrix(name, *tensor.shape, 1.2)
    (directory / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(weights.tensors, directory / "model.safetensors", {"format": "pt"})


def case_target(directory, spec, weights):
    """A case of oracle/make.py under the drafter's roof."""
    case = make.CASES[spec["of"]]
    spec["config"] = {**case["config"], **spec["more"]}
    (directory / "config.json").write_text(json.dumps(spec["config"]))
    weights.tensors = make.random_weights(transformers.AutoConfig.from_pretrained(directory), case, weights.rng)
    make.write_weights(directory, weights.tensors, 1)


def clear(row):
    row = row[torch.isfinite(row)]
    best = row.sort(descending=True).values
    return bool((best[0] - best[1]) / row.std() >= MIN_MARGIN)


def make_case(directory, name, spec, targets):
    rng = numpy.random.default_rng(int.from_bytes(name.encode(), "little") % 2**32)
    directory.mkdir(parents=True)
    if spec["target"] is None:
        with tempfile.TemporaryDirectory() as scratch:
            of_target = Weights(rng)
            (case_target if "of" in spec else mimo_target)(Path(scratch), spec, of_target)
            target = Target(scratch)
    else:
        of_target, target = Weights(rng), Target(targets / spec["target"])
    tokens = [int(token) for token in rng.integers(0, target.config.vocab_size, LENGTH)]
    # A chain goes on by its own best tokens: none of these may be a toss-up.
    for attempt in range(1000):
        weights = Weights(numpy.random.default_rng(rng.integers(2**32)))
        chosen = []
        if spec["kind"] == "medusa":
            rows = medusa(spec, target, weights, weights.rng, tokens)
            break
        rows, chosen = followed(spec, target, weights, weights.rng, tokens)
        if all(clear(row) for row in rows[-STEPS - 1:]):
            break
    else:
        raise SystemExit(f"{name}: no clear choices: the weights are degenerate")
    counted = [index for index, row in enumerate(rows) if clear(row)]
    if "config" in spec:
        (directory / "config.json").write_text(json.dumps(spec["config"], indent=1) + "\n")
    tensors = {**of_target.tensors, **weights.tensors}
    safetensors.torch.save_file(tensors, directory / spec.get("file", "model.safetensors"), {"format": "pt"})
    about = {"kind": spec["kind"], "target": spec["target"], "tokens": tokens, "chosen": chosen, "rows": counted}
    (directory / "drafts.json").write_text(json.dumps(about) + "\n")
    rows[counted].numpy().astype("<f4").tofile(directory / "drafts.f32")


def differences(committed, fresh):
    names = sorted({p.relative_to(tree) for tree in (committed, fresh) for p in tree.glob("*/*")})
    for name in names:
        old, new = committed / name, fresh / name
        if not old.exists() or not new.exists():
            yield f"{name}: only in the {'committed' if old.exists() else 'fresh'} tree"
        elif name.suffix == ".f32":
            a, b = numpy.fromfile(old, "<f4"), numpy.fromfile(new, "<f4")
            if a.shape != b.shape or (numpy.isfinite(a) != numpy.isfinite(b)).any():
                yield f"{name}: other rows or tokens"
                continue
            a, b = a[numpy.isfinite(a)], b[numpy.isfinite(b)]
            if not numpy.abs(a - b).max() <= TOLERANCE * numpy.abs(a).max():
                yield f"{name}: logits differ by up to {numpy.abs(a - b).max():.3g}"
        elif old.read_bytes() != new.read_bytes():
            yield f"{name}: differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing it")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        for name, spec in CASES.items():
            with torch.no_grad():
                make_case(fresh / name, name, spec, arguments.directory.parent)
        if arguments.check:
            found = list(differences(arguments.directory, fresh))
            print("\n".join(found) or f"oracle: {len(CASES)} drafters agree with torch {torch.__version__}")
            return 1 if found else 0
        shutil.rmtree(arguments.directory, ignore_errors=True)
        shutil.copytree(fresh, arguments.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
