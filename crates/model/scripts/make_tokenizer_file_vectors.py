"""Small tokenizer.model, tekken.json and GGUF files, and the token ids that sentencepiece, mistral_common and tokenizers give.

    python scripts/make_tokenizer_file_vectors.py              writes tests/vectors/tokenizers/files
    python scripts/make_tokenizer_file_vectors.py compare N    compares N random texts with a build of the example token_ids

Needs gguf, sentencepiece, tokenizers and mistral_common. Comparing trains models of all normalizations, whose tables are too large to keep,
and reads them through `cargo build -p riffle-model --example token_ids` (or TOKEN_IDS, the path of another build).
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import sentencepiece
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from original_pre_tokenizers import CASES, cuts

CRATE = pathlib.Path(__file__).resolve().parent.parent
ROOT = CRATE.parent.parent
sys.path.insert(0, str(ROOT / "scripts/compare"))
from random_texts import BOOK, WORDS, random_texts  # noqa: E402

OUT = CRATE / "tests" / "vectors" / "tokenizers" / "files"
CONTROL = ["<s>", "</s>", "<unk>", "<|im_end|>", "<pad>", "<eos>", "<bos>", "<0x"]
TEXTS = ["", " ", "   ", "a", " a", "a ", "  a  b  ", "\u2581a \u2581", "\u3000x\u00a0y", "\ufb01ne \ufb01", "\u2460\u2460", "e\u0301te\u0301", "\uff21\uff22\uff23", "<tool>x <tool>", " <tool> ", "[RUN]a[RUN]b",
         "<too<tool>l>", "aaaaaaa", "abababab", "\U0001f642\U0001f642", "\u6771\u4eac \u6771", "\n\n a\n", "\t\ta", "12345 6"]
RULES = {"\ufb01": "fi", "\u2460": "1", "e\u0301": "\u00e9", "\uff21": "A", "\uff22": "B", "\u3000": " ", "\u00a0": " ", "\u2026": ". . .", "\u00ad": "", "\u200b": " ", "\u1100\u1161": "\uac00", "\u1100": "\u11a8"}
IDENTITY = dict(normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True)
SYMBOLS = dict(user_defined_symbols=["<tool>", "[RUN]", "\ufb01n"], control_symbols=["<|im_end|>"])
KEPT = {
    "bpe-bytes": dict(model_type="bpe", byte_fallback=True, split_digits=True, **IDENTITY),
    "bpe-rules": dict(model_type="bpe", rules=RULES, **SYMBOLS),
    "bpe-no-prefix": dict(model_type="bpe", byte_fallback=True, add_dummy_prefix=False, **IDENTITY, **SYMBOLS),
    "unigram-bytes": dict(model_type="unigram", byte_fallback=True, **IDENTITY),
    "unigram-rules": dict(model_type="unigram", rules=RULES, **SYMBOLS),
    "unigram-suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True, rules=RULES, byte_fallback=True),
}
COMPARED = {
    f"{kind}-{rule}": dict(model_type=kind, normalization_rule_name=rule, byte_fallback=kind == "bpe", **SYMBOLS)
    for kind in ["bpe", "unigram"] for rule in ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"]
} | {"bpe-spaces": dict(model_type="bpe", byte_fallback=True, escape_whitespaces=False, rules=RULES)}


def sentence_pieces(path, settings):
    """Trains a model into `path`; returns what encodes a text."""
    settings = dict(settings)
    escapes = settings.pop("escape_whitespaces", True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        corpus = folder / "corpus.txt"
        corpus.write_text(BOOK.read_text() + "\n" + "\n".join(WORDS * 5))
        if rules := settings.pop("rules", None):
            table = folder / "rules.tsv"
            spell = lambda text: " ".join(f"{ord(character):X}" for character in text)  # noqa: E731
            table.write_text("".join(f"{spell(before)}\t{spell(after)}\n" for before, after in sorted(rules.items())))
            settings["normalization_rule_tsv"] = str(table)
        sentencepiece.SentencePieceTrainer.Train(input=str(corpus), model_prefix=str(folder / "m"), vocab_size=620, character_coverage=0.999,
                                                 num_threads=1, minloglevel=2, hard_vocab_limit=False, **settings)
        proto = sentencepiece_model_pb2.ModelProto.FromString((folder / "m.model").read_bytes())
    # Paths of this run.
    proto.trainer_spec.ClearField("input")
    proto.trainer_spec.ClearField("model_prefix")
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    if not escapes:
        # No trainer makes such a model.
        proto.normalizer_spec.escape_whitespaces = False
    path.write_bytes(proto.SerializeToString())
    return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode


def write_gguf(path, kind, tokens, scores, kinds, further):
    """The header of a GGUF file with a tokenizer and no model."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if scores:
        writer.add_token_scores(scores)
    further(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def unigram_gguf(path):
    """The model `unigram-rules` as llama.cpp's converter writes it, but for symbols of users, which llama.cpp looks for in the text as it is."""
    model = path.with_suffix(".model")
    encode = sentence_pieces(model, dict(model_type="unigram", rules=RULES, control_symbols=["<|im_end|>"]))
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.read_bytes())
    model.unlink()

    def further(writer):
        writer.add_add_space_prefix(proto.normalizer_spec.add_dummy_prefix)
        writer.add_remove_extra_whitespaces(proto.normalizer_spec.remove_extra_whitespaces)
        writer.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
        writer.add_eos_token_id(2)

    pieces = proto.pieces
    write_gguf(path, "t5", [piece.piece for piece in pieces], [piece.score for piece in pieces], [piece.type for piece in pieces], further)
    return encode


def gemma4_gguf(path):
    """Byte pairs over whole texts with `\u2581` for spaces, as Gemma's tokenizer.json has them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, limit_alphabet=90, show_progress=False)
    book = BOOK.read_text()
    tokenizer.train_from_iterator([book[start:start + 60] for start in range(0, len(book), 60)] + TEXTS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")

    def further(writer):
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        writer.add_bos_token_id(2)
        writer.add_add_space_prefix(False)

    kinds = [3, 3, 3, 2, *[6] * 256, *[1] * (len(tokens) - 260)]
    write_gguf(path, "gemma4", tokens, None, kinds, further)
    return lambda text: tokenizer.encode(text).ids


def tekken(path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cuts(CASES % ("", "", ""))
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([BOOK.read_text(), *random_texts(500, seed=9)], trainer)
    byte_of = {character: byte for byte, character in enumerate(bytes_as_characters())}
    texts = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    tokens = [bytes(byte_of[character] for character in text) for text in texts if len(text) > 1]
    tokens = [bytes([byte]) for byte in range(256)] + tokens
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for rank, token in enumerate(tokens)]
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    data = {
        "config": {"pattern": CASES % ("", "", ""), "num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) - 50 + 10,
                   "default_num_special_tokens": 10, "version": "v7"},
        "vocab": vocab,
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)],
    }
    path.write_text(json.dumps(data, separators=(",", ":")))
    reference = Tekkenizer.from_file(path)
    return lambda text: reference.encode(text, bos=False, eos=False)


def bytes_as_characters():
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + place) for place, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


def is_plain(text):
    # The references read control tokens in a text as plain text.
    return not any(token in text for token in [*CONTROL, "[INST]", "[/INST]"])


def make():
    OUT.mkdir(exist_ok=True)
    encoders = {name: sentence_pieces(OUT / f"{name}.model", settings) for name, settings in KEPT.items()}
    encoders["tekken"] = tekken(OUT / "tekken.json")
    encoders["t5"] = unigram_gguf(OUT / "t5.gguf")
    encoders["gemma4"] = gemma4_gguf(OUT / "gemma4.gguf")
    texts = [text for text in TEXTS + random_texts(40, seed=17) if is_plain(text)]
    ids = {name: [encode(text) for text in texts] for name, encode in encoders.items()}
    lines = [f'"texts": {json.dumps(texts)}', *(f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}" for name, found in ids.items())]
    (OUT / "ids.json").write_text("{" + ",\n".join(lines) + "}\n")


def compare(count):
    program = os.environ.get("TOKEN_IDS", ROOT / "target" / "debug" / "examples" / "token_ids")
    texts = [text for text in TEXTS + random_texts(count) if is_plain(text)]
    for name, settings in [*KEPT.items(), *COMPARED.items(), ("tekken", None)]:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / ("tokenizer.model" if settings else "tekken.json")
            encode = sentence_pieces(file, settings) if settings else tekken(file)
            expected = [encode(text) for text in texts]
            lines = "".join(json.dumps(text) + "\n" for text in texts)
            run = subprocess.run([program, folder], input=lines, text=True, check=True, capture_output=True)
            found = [json.loads(line) for line in run.stdout.splitlines()]
            different = [case for case in zip(texts, expected, found, strict=True) if case[1] != case[2]]
            print(f"{name:<22} {len(texts) - len(different)} of {len(texts)} texts equal", flush=True)
            for case in different[:3]:
                print("    {!r}: {} there, {} here".format(*case))


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare(int(sys.argv[2]))
    else:
        make()
