#!/usr/bin/env python3
"""Writes answers.json: what a llama.cpp server answers to ten questions, greedily, as token ids.

    tests/real/make.py http://127.0.0.1:8080

README.md beside it says which server and which weights. Standard library only.
"""

import json
import sys
import urllib.request
from pathlib import Path

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTIONS = [
    "What is the capital of France, and what is it known for?",
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the larger of two numbers.",
    "What is the difference between a virus and a bacterium?",
    "Why does bread rise when it is baked?",
    "How does a bicycle stay upright?",
    "What is photosynthesis?",
    "What causes the seasons on Earth?",
    "Describe how rain forms.",
    "Write a short letter to a friend about a holiday by the sea.",
]
MAX_TOKENS = 48
END = "<|im_end|>"


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def ids(url, text):
    return post(url, "/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]


def answer(url, question):
    text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    prompt = ids(url, text)
    body = {"prompt": prompt, "n_predict": MAX_TOKENS, "temperature": 0, "n_probs": 1, "cache_prompt": False}
    found = post(url, "/completion", body)
    # The server tells a token by its text: one token each, or this is not the way to find out which.
    pieces = [ids(url, entry["content"]) for entry in found["completion_probabilities"]]
    assert all(len(piece) == 1 for piece in pieces), pieces
    tokens = [piece[0] for piece in pieces]
    if found["stopped_eos"] and tokens[-1:] != ids(url, END):
        tokens += ids(url, END)
    assert len(tokens) == found["tokens_predicted"], found
    return {"question": question, "prompt": prompt, "answer": tokens, "text": found["content"]}


def main():
    cases = [answer(sys.argv[1].rstrip("/"), question) for question in QUESTIONS]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (Path(__file__).parent / "answers.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
