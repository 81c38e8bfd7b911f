"""Measure an exported model on the held-out cases, through transformers.

All are decoded greedily, one case at a time, and are right only if the text after any
reasoning equals the expected answer; calls of tools are compared as they are written.  Stories count as on
topic if both requested things occur in them; their length in words is given
too.  Use --show to read some.

With --draft, the second model is asked after every token of the first one's answers
what it would have written next: the share on which both agree is what speculative
decoding can hope for.

    python evaluate.py --model ../models/lantern
    python evaluate.py --model ../models/lantern --draft ../models/lantern-draft
"""

import argparse
import collections
import json
import pathlib
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BUCKETS = ((512, "up to 512"), (1024, "513 to 1024"), (2048, "1025 to 2048"), (8192, "2049 to 4000"))
LIMITS = {"facts": 16, "sums": 120, "story": 400, "call": 200, "two calls": 300, "result": 80, "no tool": 80, "form": 120}


def bucket(case):
    if case["kind"] != "facts":
        return case["kind"]
    return "facts, prompt of " + next(name for limit, name in BUCKETS if case["prompt_tokens"] <= limit)


def answer(model, tokenizer, case):
    """The model's greedy answer without its reasoning, and the ids of prompt and answer."""
    text = tokenizer.apply_chat_template(case["messages"], tools=case.get("tools"), tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    out = model.generate(prompt, max_new_tokens=LIMITS[case["kind"]], do_sample=False,
                         temperature=None, top_p=None, attention_mask=torch.ones_like(prompt))
    new = out[0, prompt.shape[1]:]
    text = tokenizer.decode(new, skip_special_tokens=True)
    return text.split("</think>")[-1].strip(), out[0], prompt.shape[1]


def agreement(draft, ids, start):
    """How many of the ids from `start` on the draft would have written, and how many there are."""
    with torch.no_grad():
        drafts = draft(ids[None, :-1]).logits[0, start - 1:].argmax(-1)
    return (drafts == ids[start:]).sum().item(), len(ids) - start


def right(case, text):
    if case["kind"] == "story":
        return all(word in text for word in case["answer"].split()) and 60 <= len(text.split()) <= 300
    return text == case["answer"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--cases", help="default: heldout.jsonl beside the model")
    parser.add_argument("--draft", help="also measure how often this model agrees")
    parser.add_argument("--kinds", default=",".join(LIMITS))
    parser.add_argument("--limit", type=int, default=10**9, help="cases of each bucket at most")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--show", type=int, default=0, help="print this many wrong answers and stories of each kind")
    args = parser.parse_args()

    cases_file = args.cases or pathlib.Path(args.model) / "heldout.jsonl"
    cases = [json.loads(line) for line in open(cases_file)]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    draft = args.draft and AutoModelForCausalLM.from_pretrained(args.draft, dtype=getattr(torch, args.dtype)).eval()
    score, total, shown, agreed, written = (collections.Counter() for _ in range(5))
    started = time.time()
    for case in cases:
        name = bucket(case)
        if case["kind"] not in args.kinds.split(",") or total[name] >= args.limit:
            continue
        text, ids, start = answer(model, tokenizer, case)
        if draft:
            same, count = agreement(draft, ids, start)
            agreed[name] += same
            written[name] += count
        total[name] += 1
        good = right(case, text)
        score[name] += good
        if (not good or case["kind"] == "story") and shown[name] < args.show:
            shown[name] += 1
            print(f"[{name}] asked {case['messages'][-1]['content'][-80:]!r}\n"
                  f"  expected {case['answer']!r}, got {text!r}")
    for name in total:
        told = f", the draft agrees on {agreed[name] / written[name]:.0%} of the tokens" if draft else ""
        print(f"{name}: {score[name]} of {total[name]} right{told}")
    print(f"{time.time() - started:.0f} s, {args.dtype}, greedy")


if __name__ == "__main__":
    main()
