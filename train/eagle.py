"""An EAGLE-3 drafter for Lantern: one decoder layer that drafts token after token.

It reads what Lantern thought at each row, as the residual streams after layers 1, 2
and 4 that `fc` makes one feature of, together with the embedding of the token that
came next (Li et al., 2025).  A first draft uses Lantern's feature, each further one
the drafter's own hidden state in its place, so training unrolls three such steps
(the paper's training-time test).  The head knows the 1024 commonest tokens; `d2t`
says how far each stands from Lantern's id.

The exported folder has the layout of SafeAILab's and SpecForge's checkpoints, and
`eagle_aux_hidden_state_layer_ids` as vLLM counts: id n is the stream after n layers.
The embedding is Lantern's and not stored.

    python speculators_data.py
    python eagle.py --run runs/eagle --out ../models/lantern-eagle3
"""

import argparse
import collections
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import speculators
from model import FeedForward, RMSNorm, Shape, rope_tables, rotate

TAPS = (1, 2, 4)  # layers whose output is read
INTERMEDIATE = 448
DRAFT_VOCABULARY = 1024
STEPS = 3  # of drafting that training unrolls


class Attention(nn.Module):
    """Attention whose inputs are twice as wide as its output."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(2 * shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x, past):
        """Step n = len(past) of drafting from every row at once.  Its query stands n places
        on, and sees the rows up to its own as Lantern knows them, then the drafts of the
        steps 1..n from its own row alone.  `past` is given this step's keys."""
        batch, length, _ = x.shape
        step, shape = len(past), self.shape
        cos, sin = rope_tables(length + step, shape.head_dim, shape.rope_theta)
        cos, sin = cos[step:], sin[step:]
        split = lambda y, heads: y.view(batch, length, heads, shape.head_dim).transpose(1, 2)
        group = shape.heads // shape.kv_heads
        wide = lambda y: y.repeat_interleave(group, dim=1)
        q = rotate(split(self.q_proj(x), shape.heads), cos, sin) * shape.head_dim**-0.5
        v = wide(split(self.v_proj(x), shape.kv_heads))
        k = wide(rotate(split(self.k_proj(x), shape.kv_heads), cos, sin)).to(v.dtype)
        q = q.to(v.dtype)
        past.append((k, v))
        future = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
        scores = [q @ past[0][0].mT + future]
        scores += [(q * keys).sum(-1, keepdim=True).to(q.dtype) for keys, _ in past[1:]]
        weights = torch.cat(scores, dim=-1).softmax(-1).to(v.dtype)
        y = weights[..., :length] @ past[0][1]
        for at, (_, values) in enumerate(past[1:]):
            y = y + weights[..., length + at, None] * values
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.hidden_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, embedding, feature, past):
        x = torch.cat([self.input_layernorm(embedding), self.hidden_norm(feature)], dim=-1)
        x = feature + self.self_attn(x, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle(nn.Module):
    def __init__(self, shape, draft_vocabulary):
        super().__init__()
        self.fc = nn.Linear(len(TAPS) * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Layer(shape)
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.lm_head = nn.Linear(shape.hidden, draft_vocabulary, bias=False)
        self.register_buffer("d2t", torch.zeros(draft_vocabulary, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(shape.vocab, dtype=torch.bool))

    def start(self, target, commonest):
        """Before training: the drafter's word is Lantern's after its last tap, read by the head
        that Lantern has, and the layer adds nothing yet."""
        ids = torch.tensor(sorted(commonest))
        self.d2t.copy_(ids - torch.arange(len(ids)))
        self.t2d[ids] = True
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)
        with torch.no_grad():
            hidden = target.shape.hidden
            self.fc.weight.mul_(0.05)
            self.fc.weight[:, -hidden:] += torch.eye(hidden)
            self.midlayer.self_attn.o_proj.weight.zero_()
            self.midlayer.mlp.down_proj.weight.zero_()
            self.norm.weight.copy_(target.norm.weight)
            self.lm_head.weight.copy_(target.embed_tokens.weight[ids])

    def target_ids(self):
        return torch.arange(len(self.d2t)) + self.d2t

    def forward(self, taps, embedded, steps):
        """Hidden states before the norm of every step.  `taps` are the streams of rows 0.., and
        `embedded(n)` the embeddings of the tokens that stand n + 1 places on from each row."""
        feature, past, states = self.fc(taps), [], []
        for step in range(steps):
            feature = self.midlayer(embedded(step), feature, past)
            states.append(feature)
        return states

    def logits(self, state):
        """Scores over the draft vocabulary."""
        return self.lm_head(self.norm(state))


def tapped(seen):
    return torch.cat([seen[layer] for layer in TAPS], dim=-1)


def ahead(target, ids):
    """The embeddings of the tokens that stand step + 1 places on; at the end of a row, of padding."""
    return lambda step: target.embed_tokens(F.pad(ids[:, step + 1:], (0, step + 1)))


def learning(eagle, target):
    """The loss of one batch.  What a later step says counts where the earlier ones hold."""
    def learn(batch, sharp):
        ids, start, last = batch
        weight, loss, overlaps = torch.ones(ids.shape), 0.0, []
        with torch.autocast("cpu", torch.bfloat16):
            seen, hidden = speculators.streams(target, ids)
            states = eagle(tapped(seen), ahead(target, ids), STEPS)
        for step, state in enumerate(states):
            rows = speculators.drafted_rows(ids, start, last, step)
            words = hidden[F.pad(rows, (step + 1, 0))[:, : ids.shape[1]]]
            teacher = speculators.chances(target, words, eagle.target_ids())
            one, overlap = speculators.Lesson.apply(
                eagle.norm(state[rows]), eagle.lm_head.weight, teacher, weight[rows], sharp)
            loss = loss + one
            weight[rows] *= overlap
            overlaps.append(overlap.mean())
        return loss, torch.stack(overlaps)
    return learn


def commonest(rows, count):
    """The ids that answers hold most often; of equally common ones the lowest."""
    seen = collections.Counter(token for row in rows for token in row["ids"][row["start"]:])
    ids = sorted(seen, key=lambda token: (-seen[token], token))[:count]
    covered = sum(seen[token] for token in ids) / seen.total()
    print(f"the {count} commonest tokens are {covered:.4%} of the text", flush=True)
    return ids


def shape_of(config):
    return Shape(
        vocab=config["vocab_size"], hidden=config["hidden_size"], layers=1, heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"],
        intermediate=config["intermediate_size"], rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"], positions=config["max_position_embeddings"])


def config(target):
    same = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act",
            "attention_bias", "attention_dropout", "mlp_bias", "initializer_range", "bos_token_id",
            "eos_token_id", "pad_token_id")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{key: target[key] for key in same},
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "target_hidden_size": target["hidden_size"],
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }


def load(folder):
    """An exported drafter, in float32."""
    folder = pathlib.Path(folder)
    told = json.loads((folder / "config.json").read_text())
    assert tuple(told["eagle_aux_hidden_state_layer_ids"]) == TAPS
    eagle = Eagle(shape_of(told), told["draft_vocab_size"])
    tensors = load_file(str(folder / "model.safetensors"))
    eagle.load_state_dict({n: v.float() if v.is_floating_point() else v for n, v in tensors.items()})
    return eagle.requires_grad_(False).eval()


def export(eagle, target_config, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous()
               for name, value in eagle.state_dict().items()}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(config(target_config), indent=2) + "\n")
    return tensors


def by_hand(tensors, shape, taps, embeddings, steps):
    """The drafts from the last of `taps` as an engine makes them: a list of keys and values that
    grows by an entry per token, one entry at a time, written from the published description on
    bare tensors.  `embeddings` are those of tokens 1.. on."""
    w = {name: value.float() for name, value in tensors.items()}
    scaled = lambda x, name: F.rms_norm(x, x.shape[-1:], w[name + ".weight"], shape.norm_eps)
    linear = lambda x, name: w[name + ".weight"] @ x
    cos, sin = rope_tables(len(taps) + steps, shape.head_dim, shape.rope_theta)
    keys, values, drafts, state = [], [], [], None
    for at in range(len(taps) + steps - 1):
        feature = linear(taps[at], "fc") if at < len(taps) else state
        x = torch.cat([scaled(embeddings[at], "midlayer.input_layernorm"), scaled(feature, "midlayer.hidden_norm")])
        q, k, v = (linear(x, f"midlayer.self_attn.{name}_proj").view(-1, shape.head_dim) for name in "qkv")
        keys.append(rotate(k, cos[at], sin[at]))
        values.append(v)
        heads = []
        for head, query in enumerate(rotate(q, cos[at], sin[at])):
            group = head // (shape.heads // shape.kv_heads)
            scores = torch.stack([key[group] @ query for key in keys]) * shape.head_dim**-0.5
            heads.append(scores.softmax(0) @ torch.stack([value[group] for value in values]))
        x = feature + linear(torch.cat(heads), "midlayer.self_attn.o_proj")
        y = scaled(x, "midlayer.post_attention_layernorm")
        y = F.silu(linear(y, "midlayer.mlp.gate_proj")) * linear(y, "midlayer.mlp.up_proj")
        state = x + linear(y, "midlayer.mlp.down_proj")
        if at >= len(taps) - 1:
            drafts.append(linear(scaled(state, "norm"), "lm_head"))
    return drafts


@torch.no_grad()
def check(tensors, target, out):
    """Largest difference between the exported folder's drafts, made for all rows at once, and
    those made by hand for one."""
    eagle, row, steps = load(out), 60, 4
    ids = torch.randint(0, target.shape.vocab, (1, 90), generator=torch.Generator().manual_seed(0))
    seen, _ = speculators.streams(target, ids)
    taps = tapped(seen)
    states = eagle(taps, ahead(target, ids), steps)
    shape = eagle.midlayer.self_attn.shape
    embeddings = target.embed_tokens(ids[0, 1:])
    expected = by_hand(tensors, shape, taps[0, : row + 1], embeddings, steps)
    ours = [eagle.logits(state[0, row]) for state in states]
    return (max((a - b).abs().max().item() for a, b in zip(ours, expected)),
            max(value.abs().max().item() for value in expected))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/eagle", help="folder for the checkpoint")
    parser.add_argument("--out", required=True)
    parser.add_argument("--target", default=speculators.TARGET)
    parser.add_argument("--text", default=speculators.TEXT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=560)
    parser.add_argument("--tokens", type=int, default=4096, help="ids in a step at most, padding included")
    parser.add_argument("--muon-lr", type=float, default=0.01)
    parser.add_argument("--adam-lr", type=float, default=0.001)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    target, target_config = speculators.load_target(args.target)
    rows = speculators.load_text(args.text)
    eagle = Eagle(shape_of(config(target_config)), DRAFT_VOCABULARY)
    eagle.start(target, commonest(rows, DRAFT_VOCABULARY))
    matrices = [p for n, p in eagle.named_parameters() if p.ndim == 2 and "lm_head" not in n]
    others = [p for n, p in eagle.named_parameters() if p.ndim < 2 or "lm_head" in n]
    optimisers = [torch.optim.Muon(matrices, lr=args.muon_lr, weight_decay=0.1, momentum=0.95),
                  torch.optim.Adam(others, lr=args.adam_lr, betas=(0.9, 0.98))]
    run = speculators.Run(args.run, eagle, optimisers, args.steps)
    run.train(speculators.Batches(rows, args.tokens, args.seed), learning(eagle, target))
    tensors = export(eagle, target_config, args.out)
    worst, largest = check(tensors, target, args.out)
    count = sum(value.numel() for value in tensors.values() if value.is_floating_point())
    print(f"{count} parameters, exported logits differ by at most {worst:.2e} (largest logit {largest:.1f})")
    assert worst < 1e-3 * largest, "the export does not compute what was trained"


if __name__ == "__main__":
    main()
