#!/usr/bin/env python3
"""Writes a GGUF file of the Llama family in float32 as a Hugging Face directory, for engines that read nothing else.

    from_gguf.py FILE DIRECTORY        by a Python with torch, transformers, accelerate and gguf: `bench/peers.sh models smollm2-135m` does

transformers reads the weights; it takes any tokenizer of this family for SentencePiece's, so the one of SmolLM2, BPE over bytes with
digits apart, is put together here.
"""

import pathlib
import sys

import gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def tokenizer(file):
    fields = gguf.GGUFReader(file).fields
    value = lambda name: fields["tokenizer.ggml." + name].contents()
    if (value("model"), value("pre")) != ("gpt2", "smollm"):
        sys.exit(f"{file}: a tokenizer {value('model')} {value('pre')}; gpt2 smollm is known")
    tokens = value("tokens")
    merges = [tuple(merge.split(" ")) for merge in value("merges")]
    bpe = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    digits, rest = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Sequence([digits, rest]), decoders.ByteLevel()
    bpe.add_special_tokens([token for token, kind in zip(tokens, value("token_type")) if kind == gguf.TokenType.CONTROL])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=tokens[value("eos_token_id")])


def main():
    file, directory = map(pathlib.Path, sys.argv[1:])
    tokenizer(file).save_pretrained(directory)
    AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(directory)


if __name__ == "__main__":
    main()
