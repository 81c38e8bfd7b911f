"""Builds the tokenizers of the text tests and records what Hugging Face and Jinja make of them.

Made with tokenizers 0.23.3 and jinja2 3.1.6: python make.py

Writes byte_level.json (Qwen and Llama 3 style), byte_fallback.json (Llama 2 style), metaspace.json (Mistral style), gemma.json,
tokenizer_golden.json (encodings and decodings) and template_golden.json (templates rendered by Python's Jinja).
"""

import json
import random
from pathlib import Path

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
CORPUS = [
    "The lamp in the harbour burns all night, and the keeper counts the ships that pass.",
    "A fox went out to look for a lantern; it found three, and gave two of them away.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë au delà des îles.",
    "def add(left, right):\n    return left + right  # 1234567890\n\n",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "日本語の文章も少しだけ入れておく。你好，世界！",
    "What is 17 + 25? It's 42. They're sure, we've checked, I'll say it again.",
    '{"name": "lookup", "arguments": {"city": "Lisbon", "days": 3}}',
] * 8
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "",
    " ",
    "a",
    " a",
    "Hello, world!",
    "  two  spaces  ",
    "tabs\tand\nlines\r\n\r\nend",
    "It's what they'll say, WE'RE sure",
    "1234567890 12 3",
    "naïve café, e\u0301 composed",
    "日本語と中文 русский",
    "🦊 fox 👨‍👩‍👧 family 🇩🇪",
    "\u0000\u0001\u007f control",
    "\ufeffbom \u200bzero \u00a0nbsp",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>[INST] hi [/INST] there</s>",
    "text <|im_end|> in the middle, <think>plain</think>",
    "▁ the metaspace itself ▁▁",
    "a" * 300,
    " " * 50 + "x",
    "\n" * 20,
    "<0x41><0xFF>",
    "def f(x):\n        return {x: [1, 2, 3]}\n",
    "مرحبا بالعالم שלום",
    "The lamp in the harbour burns all night.",
]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    specials = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|stop|>", "<|eot|>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    plain = ["<think>", "</think>", "<tool_call>", "</tool_call>", "🦊🦊"]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin|> $A",
                pair="<|begin|> $A <|begin|> $B",
                special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))],
            ),
        ]
    )
    return tokenizer


def sentencepiece(kind):
    """BPE over whole words with ▁ for the space and byte tokens for unknown characters."""
    specials = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False)
    trained.train_from_iterator([text for text in CORPUS if text.isascii()], trainer)
    model = json.loads(trained.to_str())["model"]
    names = specials + bytes_ + sorted(model["vocab"], key=model["vocab"].get)
    vocab = {name: i for i, name in enumerate(names)}
    merges = [tuple(merge) for merge in model["merges"]]
    bpe = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    if kind == "byte_fallback":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif kind == "gemma":
        # No space in front; runs of new lines and of spaces are tokens, but not special ones.
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
        runs = ["\n\n", "\n\n\n", "▁▁", "▁▁▁▁"]
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in runs])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    strip = [] if kind == "gemma" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if kind == "gemma":
        turns = ["<start_of_turn>", "<end_of_turn>"]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in turns])
    if kind == "metaspace":
        control = ["[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "[CALLS]", "[RESULT]", "[/RESULT]"]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def golden(tokenizer, rng, any_bytes):
    encodings = []
    for text in TEXTS:
        encodings.append(
            {
                "text": text,
                "ids": tokenizer.encode(text, add_special_tokens=False).ids,
                "ids_with_special": tokenizer.encode(text, add_special_tokens=True).ids,
            }
        )
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    for entry in encodings:
        entry["plain"] = plain.encode(entry["text"], add_special_tokens=False).ids
        entry["decoded"] = tokenizer.decode(entry["ids_with_special"], skip_special_tokens=False)
        entry["decoded_skipping"] = tokenizer.decode(entry["ids_with_special"], skip_special_tokens=True)
    # Random ids. With byte tokens, the decoders agree where the bytes are UTF-8 (src/tokenizer.rs says why not elsewhere).
    decodings = []
    while len(decodings) < 60:
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 12))]
        text = tokenizer.decode(ids, skip_special_tokens=bool(len(decodings) % 2))
        if any_bytes or "\ufffd" not in text:
            decodings.append({"ids": ids, "skip_special": bool(len(decodings) % 2), "text": text})
    return {"encodings": encodings, "decodings": decodings}


class Generation(Extension):
    """`{% generation %}` as transformers defines it, without the tracking."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return CallBlock(self.call_method("_same"), [], [], body).set_lineno(lineno)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(name, case):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string((HERE / "templates" / f"{name}.jinja").read_text())
    variables = {"tools": None, "documents": None, **case.get("kwargs", {})}
    try:
        return {
            "text": template.render(
                messages=case["messages"],
                add_generation_prompt=case.get("add_generation_prompt", False),
                bos_token="<|begin|>",
                eos_token="<|im_end|>",
                **variables,
            )
        }
    except TemplateError as error:
        return {"refused": error.message}


TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Finds a <ship> & its \"harbour\"",
        "parameters": {"type": "object", "properties": {"ship": {"type": "string"}}, "required": ["ship"]},
    },
}
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "lookup", "arguments": {"ship": "Æolus", "n": 1.0}}}
SYSTEM = {"role": "system", "content": " You keep the lamp. "}
USER = {"role": "user", "content": "Which ship passed?\n"}
ANSWER = {"role": "assistant", "content": "<think>\nthe log says\n</think>\n\nThe Æolus.  "}
CASES = {
    "one_turn": {"messages": [USER], "add_generation_prompt": True},
    "no_prompt": {"messages": [SYSTEM, USER, ANSWER]},
    "three_turns": {"messages": [SYSTEM, USER, ANSWER, {"role": "user", "content": "And then?"}], "add_generation_prompt": True},
    "tools": {
        "messages": [
            SYSTEM,
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": '{"seen": true}', "tool_call_id": "abcdef123"},
        ],
        "add_generation_prompt": True,
        "kwargs": {"tools": [TOOL, TOOL]},
    },
    "no_thinking": {"messages": [USER], "add_generation_prompt": True, "kwargs": {"enable_thinking": False}},
    "reasoning": {
        "messages": [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}],
        "kwargs": {"date_string": "21 Nov 2026"},
    },
    "wrong_turns": {"messages": [USER, USER]},
    "two_calls": {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]},
}


def main():
    rng = random.Random(1)
    tokenizers = {
        "byte_level": byte_level(),
        "byte_fallback": sentencepiece("byte_fallback"),
        "metaspace": sentencepiece("metaspace"),
        "gemma": sentencepiece("gemma"),
    }
    result = {}
    for name, tokenizer in tokenizers.items():
        (HERE / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=0) + "\n")
        result[name] = golden(tokenizer, rng, any_bytes=name == "byte_level")
    (HERE / "tokenizer_golden.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")
    rendered = []
    for name in ["chatml", "llama3", "mistral", "qwen3", "gemma2", "gemma3", "phi", "granite", "smollm3"]:
        for label, case in CASES.items():
            if name == "chatml" and label in ("tools", "two_calls"):
                continue
            expected = render(name, case)
            entry = {"template": name, "case": label, **case, "expected": expected}
            if name in ("chatml", "qwen3") and "text" in expected:
                entry["ids"] = tokenizers["byte_level"].encode(expected["text"], add_special_tokens=False).ids
            rendered.append(entry)
    case = {"messages": [SYSTEM, USER, ANSWER]}
    rendered.append({"template": "features", "case": "features", **case, "expected": render("features", case)})
    (HERE / "template_golden.json").write_text(json.dumps(rendered, indent=1) + "\n")


if __name__ == "__main__":
    main()
