"""The Llama architecture in one page of PyTorch.

A stack of identical blocks reads a row of token ids.  Each block adds two
things to the running hidden state: what attention gathered from earlier
tokens, and what a gated feed-forward layer made of the current one.  The
arithmetic (RMSNorm, rotate-half RoPE, grouped-query attention, SwiGLU, tied
embeddings) is that of `LlamaForCausalLM` in Hugging Face transformers, and
`export.py` checks that both give the same logits.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    """The sizes that make one model of the family."""

    vocab: int = 2048
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 704
    rope_theta: float = 500000.0
    norm_eps: float = 1e-5
    positions: int = 6144  # rows of 4096 are trained; look-ups still mostly work at 6000, not at 8000


SHAPES = {
    "lantern": Shape(),
    "lantern-draft": Shape(hidden=128, layers=3, heads=4, kv_heads=2, head_dim=32, intermediate=320),
}


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(length, head_dim, theta):
    """cos and sin of every position's rotation angles, each [length, head_dim]."""
    frequency = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(length).float(), frequency)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotate-half RoPE: pairs are (i, i + head_dim / 2), as Llama checkpoints expect."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def causal_attention(q, k, v, block=512):
    """Plain attention, one block of queries at a time over the keys so far.

    On a CPU and at these sizes this is up to twice as fast as the fused kernel
    of PyTorch, because it spends its time in large bfloat16 matrix products.
    """
    batch, heads, length, head_dim = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q * head_dim**-0.5, k, v))
    future = torch.full((block, block), float("-inf"), dtype=q.dtype).triu(1)
    rows = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        scores = q[:, start:stop] @ k[:, :stop].mT
        scores = scores + F.pad(future[: stop - start, : stop - start], (start, 0))
        rows.append(scores.softmax(-1).to(v.dtype) @ v[:, :stop])
    return torch.cat(rows, dim=1).view(batch, heads, length, head_dim)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        split = lambda y, n: y.view(batch, length, n, self.shape.head_dim).transpose(1, 2)
        q = rotate(split(self.q_proj(x), self.shape.heads), cos, sin)
        k = rotate(split(self.k_proj(x), self.shape.kv_heads), cos, sin)
        v = split(self.v_proj(x), self.shape.kv_heads)
        # Each KV head serves a run of neighbouring query heads.
        group = self.shape.heads // self.shape.kv_heads
        k = k.to(v.dtype).repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        y = causal_attention(q.to(v.dtype), k, v)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token ids in, hidden states out; `logits` turns those into scores."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.apply(self._initialise)
        # Blocks start as near no-ops, so the residual stream does not grow with depth.
        for block in self.layers:
            nn.init.zeros_(block.self_attn.o_proj.weight)
            nn.init.zeros_(block.mlp.down_proj.weight)
        # Looking up "what came after this word" takes two kinds of attention head, and
        # a short training run would spend most of its time finding them.  So they are
        # given; training is free to undo them.
        basis = torch.linalg.qr(torch.randn(shape.hidden, shape.hidden))[0].mT
        self._start_local(basis)
        self._start_induction(basis)

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    @torch.no_grad()
    def _start_local(self, basis, sharpness=4.5, frequencies=8):
        """Let head i of the first layer start out looking i + 1 tokens back.

        All embeddings share a constant direction, queries and keys of the first
        layer read only that direction, and their rotary angles agree exactly at
        the wanted distance.
        """
        shape, attention = self.shape, self.layers[0].self_attn
        self.embed_tokens.weight.add_(0.02 * shape.hidden**0.5 * basis[0])
        # After RMSNorm about half of the energy lies along the constant direction.
        reading = (shape.hidden / 2) ** 0.5
        reader = basis[0] * (sharpness * shape.head_dim**0.5) ** 0.5 / reading
        cos, sin = rope_tables(shape.heads + 1, shape.head_dim, shape.rope_theta)
        ones = torch.zeros(shape.head_dim)
        ones[:frequencies] = 1.0
        keys = attention.k_proj.weight.view(shape.kv_heads, shape.head_dim, -1)
        keys.copy_(torch.outer(ones, reader).expand_as(keys))
        queries = attention.q_proj.weight.view(shape.heads, shape.head_dim, -1)
        for head in range(shape.heads):
            # Turn the query back by the distance it should look.
            turned = rotate(ones, cos[head + 1], -sin[head + 1])
            queries[head] = torch.outer(turned, reader)

    @torch.no_grad()
    def _start_induction(self, basis, strength=1.5):
        """Let the first KV group of the second layer start out as an induction head:
        it looks for places whose previous token is the current one, and copies what
        stands there.

        Separate directions of `basis` carry what is matched, what is copied and
        where head 0 below writes the previous token, so nothing interferes.  The
        match sits in the slowly turning half of the rotary dimensions, so that
        distance hardly matters.
        """
        shape, below, attention = self.shape, self.layers[0].self_attn, self.layers[1].self_attn
        size, half, quarter = shape.head_dim, shape.head_dim // 2, shape.head_dim // 4
        gain = 0.02 * shape.hidden**0.5
        sharpness = 3.2 * (64 / shape.head_dim) ** 0.75  # smaller heads match fewer directions
        matched, copied, previous = basis[1:].split([half, size, shape.hidden - 1 - half - size])[:3]
        slow = torch.cat([torch.arange(quarter, half), torch.arange(quarter, half) + half])

        below.v_proj.weight[:half] = matched * gain
        nn.init.normal_(below.o_proj.weight, std=0.003)
        below.o_proj.weight.sub_(basis.mT[:, : 1 + half + size] @ (basis[: 1 + half + size] @ below.o_proj.weight))
        below.o_proj.weight[:, :half] = previous[:half].mT * 0.2

        keys = attention.k_proj.weight[:size]
        keys.zero_()
        keys[slow] = previous[:half] * sharpness
        attention.v_proj.weight[:size] = copied * gain
        queries = attention.q_proj.weight.view(shape.heads, size, -1)
        output = attention.o_proj.weight.view(-1, shape.heads, size)
        for head in range(shape.heads // shape.kv_heads):
            queries[head] = 0
            queries[head, slow] = matched * gain * sharpness
            output[:, head] = copied.mT * gain * strength

    def forward(self, ids):
        cos, sin = rope_tables(ids.shape[1], self.shape.head_dim, self.shape.rope_theta)
        x = self.embed_tokens(ids)
        for block in self.layers:
            x = block(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight)
