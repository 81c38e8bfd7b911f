"""The tokenizer: byte-level BPE over our own text, and the chat format.

Text is first cut with the pattern that Qwen2 made common: words with their
leading space, single digits, runs of punctuation, line breaks.  Single digits
keep column arithmetic simple.  Merges are then learned on a sample from the
generator until the vocabulary is full.

    python tokenizer.py --out ../models/lantern
"""

import argparse
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import generate
import talk
import words

VOCABULARY = 2048
# How often each pool word is repeated in the sample, to earn it a token.
START_BOOST, INSIDE_BOOST = 1000, 600
SPECIAL = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
# Not special, so that they stay visible in decoded text and a server can split on them.
VISIBLE = ["<think>", "</think>"]
RESERVED = ["<|pad|>"]

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CHAT_TEMPLATE = """{%- if tools -%}
{{- '<|system|>\\nYou may call these tools:\\n' -}}
{%- for tool in tools -%}
{%- set parameters = tool.function.parameters or {} -%}
{{- (tool.function.description + ' ' if tool.function.description else '') + 'Tool ' + tool.function.name -}}
{{- '(' + ((parameters.required or parameters.properties or []) | join(', ')) + ') ' + (parameters | tojson) + '\\n' -}}
{%- endfor -%}
{{- 'Write a call as <tool_call>\\n{"name": "...", "arguments": {...}}\\n</tool_call><|end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|user|>\\n<tool_response>\\n' + message.content + '\\n</tool_response><|end|>\\n' -}}
{%- elif message.role in ['system', 'user', 'assistant'] -%}
{{- '<|' + message.role + '|>\\n' -}}
{%- if message.reasoning_content -%}
{{- '<think>' + message.reasoning_content + '</think>' -}}
{%- endif -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>\\n' -}}
{%- else -%}
{{- raise_exception('Unknown role: ' + message.role) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>\\n' -}}
{%- endif -%}
"""


def render(messages, generate=False):
    """The chat template in Python."""
    text = "".join(f"<|{m['role']}|>\n{m['content']}<|end|>\n" for m in messages)
    return text + ("<|assistant|>\n" if generate else "")


def sample_text(seed, conversations):
    """What the merges are learned from.  Pool words are added as they stand at the
    start of an answer and inside a sentence, so that both forms become tokens."""
    rng = random.Random(seed)
    for _ in range(conversations):
        for message in generate.short(rng, 400):
            yield message["content"]
    values = words.NAMES + words.TOWNS
    nouns = words.FRUITS + words.COLOURS + words.DRINKS
    for word in values + [noun.capitalize() for noun in nouns]:
        yield f"\n{word}" * START_BOOST + f" {word}" * START_BOOST
    for word in nouns + words.ADJECTIVES + words.THINGS + words.ANIMALS + words.TRADES + words.PLACES:
        yield f" {word}" * INSIDE_BOOST


def train(seed):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    added = len(SPECIAL) + len(VISIBLE) + len(RESERVED)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_text(seed, 12000), trainer)
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in VISIBLE])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=True) for t in RESERVED])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def config():
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 6144,
        "chat_template": CHAT_TEMPLATE,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", default="tokenizer")
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    train(args.seed).save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps(config(), indent=2) + "\n")


if __name__ == "__main__":
    main()
