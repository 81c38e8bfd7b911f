"""What a prefix hit saves of a long prompt, of a model whose layers have states.

    python bench/states.py make DIRECTORY                          random weights in a small Qwen3.5 shape; needs transformers
    python bench/states.py http://127.0.0.1:8000 [TOKENS] [ROUNDS] against `twostroke serve -m DIRECTORY`

Random weights: the figures are of speed. Each round has a prompt of its own, asked cold, asked again, and gone on with by
its answer and 50 tokens, as the next turn of a chat.
"""

import json
import random
import sys
import urllib.request


def make(directory):
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        hidden_size=1024, intermediate_size=3584, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=2,
        head_dim=256, vocab_size=32000, max_position_embeddings=32768, linear_num_key_heads=16,
        linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True,
        full_attention_interval=4)
    torch.manual_seed(0)
    Qwen3_5ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def ask(base, prompt):
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["token_ids"], answer["timings"]["ttft_ms"], cached


def main():
    if sys.argv[1] == "make":
        return make(sys.argv[2])
    base, tokens, rounds = sys.argv[1], *(int(sys.argv[at]) if len(sys.argv) > at else default
                                          for at, default in ((2, 15000), (3, 2)))
    chance = random.Random(5)
    draw = lambda count: [chance.randrange(3, 32000) for _ in range(count)]
    for _ in range(rounds):
        prompt = draw(tokens)
        (text, cold, _), (again, hit, found) = ask(base, prompt), ask(base, prompt)
        assert text == again, "a hit changes no token"
        _, turn, kept = ask(base, prompt + text + draw(50))
        print(f"cold {cold:.0f} ms; again {hit:.1f} ms, {found} tokens found (1/{cold / hit:.0f}); "
              f"next turn {turn:.1f} ms, {kept} found (1/{cold / turn:.0f})")


if __name__ == "__main__":
    main()
