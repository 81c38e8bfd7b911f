#!/usr/bin/env python3
"""Mean KL divergence of OpenVINO from transformers in float32, in nats.

    kl.py MODEL REFERENCE TEXT        run by a Python with optimum-intel: `bench/peers.py --cases quality` does

The tokens are those that `twostroke quality -c 512 --skip 256` scores: the second half of each whole window of 512.
"""

import sys

import torch
from optimum.intel import OVModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

WINDOW, SKIP = 512, 256


def main():
    model, reference, text = sys.argv[1:]
    ids = AutoTokenizer.from_pretrained(reference)(open(text).read(), add_special_tokens=False)["input_ids"]
    windows = [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]
    exact, judged = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32), OVModelForCausalLM.from_pretrained(model)
    sums, count = 0.0, 0
    with torch.inference_mode():
        for window in windows:
            tokens = torch.tensor([window])
            p = exact(tokens).logits[0, SKIP : WINDOW - 1].double().log_softmax(-1)
            q = judged(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, SKIP : WINDOW - 1].double().log_softmax(-1)
            sums += float((p.exp() * (p - q)).sum())
            count += len(p)
    print(sums / count)


if __name__ == "__main__":
    main()
