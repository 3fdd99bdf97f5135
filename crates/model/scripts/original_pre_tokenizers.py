"""The pre-tokenizers of original models, by the names that GGUF files have for them, as `tokenizers` runs them.

A pattern is that of the model's tokenizer.json or, where llama.cpp names no other, the list of llama.cpp.
"""

from tokenizers import Regex, normalizers, pre_tokenizers

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASES = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
         r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
CHINESE_AND_JAPANESE = "[一-龥\u3040-ゟ゠-ヿ]+"
CHINESE_AND_KOREAN = "[一-龥ࠀ-一가-\ud7ff]+"
STOPS = r" ?[^(\s|.,!?…。，、।۔،)]+"
CASED = ("\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
         "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+")
# Oniguruma writes the part of a class that is not Chinese as an intersection.
NOT_HAN = r"&&[^\p{Han}]"
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]*[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]+(?:%s)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]+[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]*(?:%s)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+") % (NOT_HAN, NOT_HAN, ENDINGS, NOT_HAN, NOT_HAN, ENDINGS)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def part(cut):
    return pre_tokenizers.Split(Regex(cut), behavior="isolated") if isinstance(cut, str) else cut


def cuts(*steps):
    return pre_tokenizers.Sequence([*map(part, steps), BYTES])


def steps(*steps):
    return pre_tokenizers.Sequence([part(step) for step in steps])


def kind(names, pre, composes=False, ignores_merges=False):
    return {"names": names.split(), "pre": pre, "normalizer": normalizers.NFC() if composes else None, "ignores_merges": ignores_merges}


KINDS = [
    kind("gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling", GPT2),
    kind("mpt olmo modern-bert", GPT2, composes=True),
    kind("smollm starcoder refact codeshell exaone minerva-7b mellum2", steps(DIGITS, GPT2)),
    kind("command-r", steps(DIGITS, GPT2), composes=True),
    kind("tiny_aya cohere2moe", cuts(r"\d{1,3}(?=(?:\d{3})*\b)", CASES % (ENDINGS + "?", ENDINGS + "?", "{1,3}")), composes=True),
    kind("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano glm4 glm5", cuts(WORDS % r"\p{N}{1,3}"), ignores_merges=True),
    kind("dbrx smaug-bpe chatglm-bpe", cuts(WORDS % r"\p{N}{1,3}")),
    kind("minicpm5", cuts(r"\p{N}{1,3}", WORDS % r"\p{N}+"), ignores_merges=True),
    kind("jais-2", cuts((WORDS % r"\p{N}{1,3}").replace(r"|\s+(?!\S)|\s+", "".join(rf"|\s{{{n}}}(?!\S)" for n in [512, 256, 128, 64, 32, 16, 8, 4]) + r"|\s{1,2}(?!\S)|\s{1}"))),
    kind("qwen2 deepseek-r1-qwen megrez f2llmv2", cuts(WORDS % r"\p{N}"), composes=True),
    kind("stablelm2 kormo hunyuan solar-open grok-2", cuts(WORDS % r"\p{N}")),
    kind("laguna", cuts(r"[^\n]+|[\n]+", WORDS % r"\p{N}")),
    kind("ufakzeka", cuts((WORDS % r"\p{N}").removeprefix(ENDINGS + "|"))),
    kind("bailingmoe bailingmoe2 llada-moe", cuts(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")),
    kind("seed-coder", cuts(ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")),
    kind("exaone-moe", cuts(ENDINGS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")),
    kind("qwen35", cuts((WORDS % r"\p{N}").replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")), composes=True),
    kind("tekken", cuts(CASES % ("", "", "")), ignores_merges=True),
    kind("gpt-4o llama4 kanana2 talkie minimax-m2", cuts(CASES % (ENDINGS + "?", ENDINGS + "?", "{1,3}"))),
    kind("granite-embed-multi-97m", cuts(CASES % (ENDINGS + "?", ENDINGS + "?", "{1,3}")), ignores_merges=True),
    kind("youtu", cuts("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", CASES % (ENDINGS + "?", ENDINGS + "?", "")), ignores_merges=True),
    kind("kimi-k2", cuts(KIMI)),
    kind("deepseek-v3 hunyuan-dense joyai-llm hy_v4", cuts(r"\p{N}{1,3}", CHINESE_AND_JAPANESE, SIGNS + r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")),
    kind("spark2_5", cuts(r"\p{N}{1,3}", CHINESE_AND_JAPANESE, SIGNS + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")),
    kind("afmoe", cuts(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
                       SIGNS + r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")),
    kind("superbpe", cuts(r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    kind("deepseek-coder", cuts(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE_AND_KOREAN, r"\p{N}")),
    kind("deepseek-llm", cuts(r"[\r\n]", CASED, "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", CHINESE_AND_KOREAN, DIGITS)),
    kind("falcon", steps(pre_tokenizers.Punctuation("contiguous"), GPT2, pre_tokenizers.Digits(individual_digits=False), "[0-9][0-9][0-9]")),
    kind("bloom poro-chat gpt3-finnish", cuts(STOPS)),
    kind("viking", cuts(STOPS, DIGITS)),
    kind("chameleon", steps("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", DIGITS, pre_tokenizers.Punctuation("isolated"), GPT2)),
]
