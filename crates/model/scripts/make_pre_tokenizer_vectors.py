"""Token ids by the original pre-tokenizer of every name that GGUF files know.

    python scripts/make_pre_tokenizer_vectors.py              writes tests/vectors/tokenizers/pre_tokenizers.json
    python scripts/make_pre_tokenizer_vectors.py compare N    compares N random texts with a build of the example token_ids

Needs tokenizers and gguf. TOKEN_IDS is the path of a build other than target/debug/examples/token_ids. One vocabulary of bytes serves all: its merges know no words, so every cut shows in the ids.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

import gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from original_pre_tokenizers import BYTES, KINDS

CRATE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CRATE.parent.parent / "scripts/compare"))
from random_texts import random_texts  # noqa: E402

OUT = CRATE / "tests" / "vectors" / "tokenizers" / "pre_tokenizers.json"
TEXTS = [
    "It's THE'LL we'Re Don'T 'tis can't've", "1 12 123 1234 12345 1234567 v1234567x 12,345.678 12345\u00bd678", "\u0663\u0664\u0665\u0666 \u0967\u0968\u0969\u096a \u2167\u2168",
    "a\r\nb\r\n\r\n  c\n \n\td", "   leading   and trailing   ", "x\u00a0y\u3000z\u2003\u200bw\u2028v", "CamelCaseHTTPServer snake_case iPhone McDonald's",
    "e\u0301 \u1100\u1161\u11a8 o\u0308\u0304", "\u6771\u4eac\u306b\u884c\u304f\u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 \u3105\u3106", "\u0e44\u0e17\u0e22\u0e20\u0e32\u0e29\u0e32 \u0939\u093f\u0928\u094d\u0926\u0940 \u05e2\u05b4\u05d1\u05b0\u05e8\u05b4\u05d9\u05ea",
    "\U0001f642 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd!", "$5.00 (20%) a/b http://x.y/z?q=1 x+=1; //!= \\n", "<sentinel:12>IMGIMGABZ IMGIMGIZ", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u00b2\u00b3\u00b9 \u00fe",
    "\uff01\u2026\u201c\u201d\uff0c\u3002 \u2014\u2014", "a\u0020b  c   d    e     f      g", "." * 9 + "\n" * 3 + "-" * 5 + " " * 17 + "!", "x" + " " * 300 + "y",
    "a  12   345\n 6", "\u6771\u4eacABCdef\u4e2d\u6587ab //\n/\n", "1" * 40 + "a" + "2" * 41, "  ",
]
# Tokens that no merge makes, for tokenizers that take words whole.
WHOLE_WORDS = ["\u0120trailing", "\u0120HTTP", "Server", "\u0120SERVER"]


def plain(count, seed):
    """Random texts that spell no token which ends an answer: it would be found before any cut."""
    return [text for text in random_texts(count, seed) if not any(end in text for end in ["<|", "</s>"])]


def train(texts):
    """Merges over whole texts, whatever words they hold."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = BYTES
    trainer = trainers.BpeTrainer(vocab_size=1100, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def original(kind, vocabulary, merges):
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=kind["ignores_merges"]))
    tokenizer.pre_tokenizer, tokenizer.decoder = kind["pre"], decoders.ByteLevel()
    if kind["normalizer"]:
        tokenizer.normalizer = kind["normalizer"]
    return lambda text: tokenizer.encode(text).ids


def vocabulary_and_merges():
    vocabulary, merges = train(TEXTS * 40 + plain(1800, seed=9))
    for word in WHOLE_WORDS:
        vocabulary.setdefault(word, len(vocabulary))
    return vocabulary, merges


def make():
    texts = TEXTS + plain(40, seed=31)
    vocabulary, merges = vocabulary_and_merges()
    ids = {" ".join(kind["names"]): list(map(original(kind, vocabulary, merges), texts)) for kind in KINDS}
    tokens = sorted(vocabulary, key=vocabulary.get)
    lines = [f'"tokens": {json.dumps(tokens)}', f'"merges": {json.dumps([" ".join(merge) for merge in merges])}', f'"texts": {json.dumps(texts)}']
    kinds = ",\n".join(f"{json.dumps(names)}: {json.dumps(found, separators=(',', ':'))}" for names, found in ids.items())
    OUT.write_text("{" + ",\n".join(lines) + f',\n"ids": {{\n{kinds}\n}}}}\n')


def compare(count):
    program = os.environ.get("TOKEN_IDS", CRATE.parent.parent / "target" / "debug" / "examples" / "token_ids")
    texts = TEXTS + plain(count, seed=5)
    vocabulary, merges = vocabulary_and_merges()
    for kind in KINDS:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            writer = gguf.GGUFWriter(file.name, "llama")
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(kind["names"][0])
            writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
            writer.add_token_merges([" ".join(merge) for merge in merges])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.close()
            expected = list(map(original(kind, vocabulary, merges), texts))
            lines = "".join(json.dumps(text) + "\n" for text in texts)
            run = subprocess.run([program, file.name], input=lines, text=True, check=True, capture_output=True)
        found = [json.loads(line) for line in run.stdout.splitlines()]
        different = [case for case in zip(texts, expected, found, strict=True) if case[1] != case[2]]
        unassigned = [case for case in different if any(unicodedata.category(c) == "Cn" for c in case[0])]
        print(f"{kind['names'][0]:<25} {len(texts) - len(different)} of {len(texts)} texts equal; of the others {len(unassigned)} hold characters that Unicode "
              f"{unicodedata.unidata_version} does not assign", flush=True)
        for case in [case for case in different if case not in unassigned][:3]:
            print("    {!r}: {} there, {} here".format(*case))


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare(int(sys.argv[2]))
    else:
        make()
