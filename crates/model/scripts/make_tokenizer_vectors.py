"""GGUF files with small trained tokenizers of each kind, and the token ids the original tokenizer gives.

    python scripts/make_tokenizer_vectors.py PATH_TO_LLAMA_CPP

Needs torch, transformers, tokenizers and sentencepiece; the files are written by llama.cpp's own converter, around a
model of a few weights. Texts are those of fixtures/vectors/tokenization.json. Writes tests/vectors/tokenizers.
"""

import json
import pathlib
import sys
import tempfile

import sentencepiece
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CRATE = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = CRATE.parent.parent / "fixtures"
OUT = CRATE / "tests" / "vectors" / "tokenizers"
BOOK = FIXTURES / "text" / "zechariah.txt"
SPECIAL = ["<|begin|>", "<|end|>", "<|im_end|>"]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(numbers):
    pattern = pre_tokenizers.Split(Regex(WORDS % numbers), behavior="isolated")
    return pre_tokenizers.Sequence([pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# GGUF's name of a pre-tokenizer -> what the original models have
KINDS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama-bpe": split(r"\p{N}{1,3}"),
    "qwen2": split(r"\p{N}"),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
}


def byte_bpe(directory, kind):
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    tokenizer.pre_tokenizer = KINDS[kind]
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train([str(BOOK)], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1])
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    fast.save_pretrained(directory)
    return tokenizer.get_vocab_size(), lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def sentencepiece_bpe(directory):
    sentencepiece.SentencePieceTrainer.Train(
        input=str(BOOK), model_prefix=str(directory / "tokenizer"), vocab_size=700, model_type="bpe", byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        character_coverage=0.9995, num_threads=1, minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    return 700, lambda text: processor.encode(text)


def main():
    llama_cpp = pathlib.Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion.base import TextModel

    OUT.mkdir(exist_ok=True)
    texts = [case["text"] for case in json.loads((FIXTURES / "vectors" / "tokenization.json").read_text())["cases"]]
    texts += ["a <|im_end|>b<|begin|> c", "<tool> x<tool>", "It's THE'LL we'Re 12345 1234567", "e\u0301 \u1100\u1161\u11a8"]
    for kind in ["llama", *KINDS]:
        with tempfile.TemporaryDirectory() as folder:
            directory = pathlib.Path(folder)
            vocab_size, encode = sentencepiece_bpe(directory) if kind == "llama" else byte_bpe(directory, kind)
            shape = dict(hidden_size=4, intermediate_size=4, num_attention_heads=1, num_hidden_layers=1)
            config = transformers.LlamaConfig(vocab_size=vocab_size, tie_word_embeddings=True, **shape)
            transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
            TextModel.get_vocab_base_pre = lambda self, tokenizer, kind=kind: kind
            sys.argv = ["convert", folder, "--outtype", "bf16", "--outfile", str(OUT / f"{kind}.gguf")]
            converter.main()
            # SentencePiece itself reads special tokens in a text as plain text.
            cases = [{"text": text, "ids": encode(text)} for text in texts if kind != "llama" or not any(t in text for t in ["<s>", "</s>", "<unk>"])]
            lines = ",\n".join(json.dumps(case) for case in cases)
            (OUT / f"{kind}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
