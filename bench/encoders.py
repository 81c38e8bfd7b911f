"""Texts per second of an encoder, beside sentence-transformers on the same cores, and how alike their vectors are.

    python bench/encoders.py http://127.0.0.1:8000 DIRECTORY [ROUNDS]

against `twostroke serve -m DIRECTORY`. The two take turns; printed are the medians of the rounds with their spread. Needs
sentence-transformers. Texts are pieces of this repository's documentation, whose words have one token or several, and
words drawn at random that have one each, so that all texts of a batch are equally long.
"""

import base64
import concurrent.futures
import json
import os
import pathlib
import random
import statistics
import sys
import time
import urllib.request

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy
import torch
from sentence_transformers import SentenceTransformer

WORDS = "the fox carried a lantern over river and hill while owls counted stars in silence below old trees".split()
DOCUMENT = pathlib.Path(__file__).parent.parent / "docs/arithmetic.md"
# Words of a text, and how many texts.
SETS = [(8, 512), (60, 192), (150, 96)]
TEXTS_A_REQUEST, CLIENTS = 64, 4


def main():
    base, directory = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = SentenceTransformer(directory, device="cpu")

    def ask(texts):
        body = json.dumps({"input": texts, "encoding_format": "base64", "truncate_prompt_tokens": -1}).encode()
        request = urllib.request.Request(f"{base}/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return [base64.b64decode(item["embedding"]) for item in json.load(response)["data"]]

    def ours(texts):
        parts = [texts[at:at + TEXTS_A_REQUEST] for at in range(0, len(texts), TEXTS_A_REQUEST)]
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            vectors = [vector for part in clients.map(ask, parts) for vector in part]
        return len(texts) / (time.monotonic() - start), numpy.stack([numpy.frombuffer(v, "<f4") for v in vectors])

    def theirs(texts):
        start = time.monotonic()
        vectors = model.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False)
        return len(texts) / (time.monotonic() - start), vectors

    chance = random.Random(7)
    document = DOCUMENT.read_text().split()
    piece = lambda words: (lambda at: document[at:at + words])(chance.randrange(len(document) - words))
    kinds = {"of a document": piece, "of equal length": lambda words: chance.choices(WORDS, k=words)}
    for (kind, draw), (words, count) in ((kind, size) for kind in kinds.items() for size in SETS):
        texts = [" ".join(draw(words)) for _ in range(count)]
        rates, least = {ours: [], theirs: []}, 1.0
        for turn in range(rounds + 1):
            vectors = {}
            for who in (ours, theirs) if turn % 2 else (theirs, ours):
                rate, vectors[who] = who(texts)
                if turn > 0:  # the first is a warm-up
                    rates[who].append(rate)
            least = min(least, float((vectors[ours] * vectors[theirs]).sum(1).min()))
        told = [f"{statistics.median(rates[who]):.0f} ({min(rates[who]):.0f} to {max(rates[who]):.0f})" for who in rates]
        factor = statistics.median(rates[ours]) / statistics.median(rates[theirs])
        print(f"{words} words {kind}: {told[0]} texts/s, sentence-transformers {told[1]}, x{factor:.2f}; least cosine {least:.6f}")


if __name__ == "__main__":
    main()
