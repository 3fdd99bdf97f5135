"""Random texts that tokenizers find hard, the same in every run: all of Unicode, emoji, marks, runs of whitespace, numbers,
code, spelt-out special tokens, and damaged pieces of a book."""

import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOOK = ROOT / "fixtures" / "text" / "zechariah.txt"
SPACES = [" ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\v", "\f", "\u0085"]
WORDS = ["the", "It's", "WE'LL", "you'Re", "i'M", "don't", "can'T", "naïve", "Straße", "Ὀδυσσεύς", "Москва", "東京", "한국어", "עברית", "العربية", "हिन्दी", "ไทย",
         "fn", "main()", "{", "}", "let", "x+=1;", "//", "!=", "<html>", "&amp;", "self.weights[0]", "0x1F", "#include", "\\n", "\"", "'", "''", "...", "—", "§", "☃", "ﬁ", "①",
         "1", "12", "123", "1234", "12345678", "3.14", "1,000,000", "٣٤", "Ⅻ", "½", "CamelCase", "ALLCAPS", "mixedCASEword", "snake_case", "a/b", "http://x.y/z?q=1",
         "<|begin|>", "<|end|>", "<|im_end|>", "<tool>", "<s>", "</s>", "<unk>", "<0x41>", "▁", "▁▁a", "Ġ", "\ufffd", "\ufeff"]
EMOJI = ["🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "🧑🏿‍🚀", "⚠", "1️⃣"]
MARKS = ["\u0301", "\u0308", "\u0327", "\u20dd", "\u093f", "\u0e31", "\u05b8", "\u3099"]
RANGES = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x52f), (0x590, 0x6ff), (0x900, 0x97f), (0xe00, 0xe7f), (0x1100, 0x11ff), (0x2000, 0x27bf), (0x3040, 0x30ff),
          (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xffef), (0x10000, 0x1ffff), (0x0, 0x1f), (0x20000, 0x10ffff)]


def character(source):
    return chr(source.randint(*source.choice(RANGES)))


def piece(source, book):
    match source.randrange(8):
        case 0:
            return source.choice(SPACES) * source.choice([1, 1, 1, 2, 3, 7])
        case 1 | 2:
            return source.choice(WORDS)
        case 3:
            return source.choice(EMOJI)
        case 4:
            return character(source) + source.choice(MARKS) * source.randrange(3)
        case 5:
            return "".join(character(source) for _ in range(source.randrange(1, 12)))
        case 6:
            start = source.randrange(len(book) - 60)
            return book[start:start + source.randrange(1, 60)]
        case _:
            return " " + source.choice(WORDS)


def random_texts(count, seed=4):
    source = random.Random(seed)
    book = BOOK.read_text()
    return ["".join(piece(source, book) for _ in range(source.randrange(1, 10))) for _ in range(count)]
