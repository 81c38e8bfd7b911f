#!/usr/bin/env python3
"""Mean KL divergence of an engine with an interface in Python from transformers in float32, in nats.

    kl.py openvino|vllm MODEL REFERENCE TEXT        run by the engine's own Python: `bench/peers.py --cases quality` does

The tokens are those that `twostroke quality -c 512 --skip 256` scores: the second half of each whole window of 512.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WINDOW, SKIP = 512, 256


def openvino(model, windows):
    from optimum.intel import OVModelForCausalLM

    engine = OVModelForCausalLM.from_pretrained(model)
    for window in windows:
        ids = torch.tensor([window])
        yield engine(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].float().log_softmax(-1)


def vllm(model, windows):
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype="bfloat16", max_model_len=2 * WINDOW, max_logprobs=-1, logprobs_mode="raw_logprobs")
    every = SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False, flat_logprobs=True)
    for window in windows:
        (answer,) = engine.generate([{"prompt_token_ids": window}], every, use_tqdm=False)
        logs = torch.full((WINDOW, engine.model_config.get_vocab_size()), -torch.inf)
        found = answer.prompt_logprobs
        # Of each token but the first: the distribution that it was drawn from, as ids and their logarithms.
        for row, (start, end) in enumerate(zip(found.start_indices[1:], found.end_indices[1:])):
            logs[row, torch.tensor(found.token_ids[start:end])] = torch.tensor(found.logprobs[start:end])
        yield logs


def main():
    engine, model, reference, text = sys.argv[1:]
    ids = AutoTokenizer.from_pretrained(reference)(open(text).read(), add_special_tokens=False)["input_ids"]
    windows = [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]
    exact = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32)
    sums, count = 0.0, 0
    with torch.inference_mode():
        for window, judged in zip(windows, {"openvino": openvino, "vllm": vllm}[engine](model, windows)):
            p = exact(torch.tensor([window])).logits[0, SKIP : WINDOW - 1].double().log_softmax(-1)
            q = judged[SKIP : WINDOW - 1, : p.shape[1]].double().log_softmax(-1)
            sums += float((p.exp() * (p - q)).sum())
            count += len(p)
    print(sums / count)


if __name__ == "__main__":
    main()
