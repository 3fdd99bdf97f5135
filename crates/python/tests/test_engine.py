"""Engines: answers, batches, logits, plans, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import HYBRID, MODEL, TEXT

import riffle
from riffle import errors


def question(text: str, characters: int = 4000) -> str:
    """A text with a pass key in the middle, and a question for it."""
    half = characters // 2
    return (
        f"{text[:half]} The pass key for amber falcon is 73194. {text[half:characters]} "
        "What is the pass key for amber falcon? The pass key for amber falcon is"
    )


@pytest.mark.parametrize("folder", [MODEL, HYBRID])
def test_logits_are_those_of_transformers(folder, text):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = riffle.Engine(folder, context=2048, kv_type="f32")
    tokens = engine.encode(text)[:300]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    found = engine.logits(tokens)
    assert found.shape == expected.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-3)
    expected = torch.log_softmax(torch.tensor(expected), -1)
    expected = expected[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()
    np.testing.assert_allclose(engine.log_probabilities(tokens), expected, atol=1e-3)
    np.testing.assert_allclose(engine.logits(tokens, first=290), found[290:], atol=1e-4)


def write_adapter(folder, seed):
    """An adapter of the first layer's values, as PEFT writes it."""
    random = np.random.default_rng(seed)
    name = "base_model.model.model.layers.0.self_attn.v_proj.lora_{}.weight"
    tensors = {name.format("A"): (4, 128), name.format("B"): (128, 4)}
    header, data = {}, b""
    for tensor, shape in tensors.items():
        values = random.standard_normal(shape, np.float32).tobytes()
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    return folder


def test_adapters_change_logits_by_their_scales(tmp_path, engine):
    first, second = write_adapter(tmp_path / "first", 1), write_adapter(tmp_path / "second", 2)
    tokens = engine.encode("In the beginning God created the heaven and the earth.")
    alone = riffle.Engine(MODEL, context=2048, adapters=first)
    both = riffle.Engine(MODEL, context=2048, adapters=[first, str(second)], adapter_scales=[1, 0])
    assert np.array_equal(both.logits(tokens), alone.logits(tokens))
    assert not np.array_equal(both.logits(tokens), engine.logits(tokens))
    other = both.with_options(adapter_scales=[0, 0.5])
    assert not np.array_equal(other.logits(tokens), both.logits(tokens))
    without = both.with_options(adapter_scales=[0, 0])
    assert np.array_equal(without.logits(tokens), riffle.Engine(MODEL, context=2048).logits(tokens))
    assert riffle.plan(MODEL, adapters=[first])["weights_bytes"] > riffle.plan(MODEL)["weights_bytes"]
    with pytest.raises(errors.OptionError, match="adapter_scales has 1 scales, but there are 2 adapters"):
        both.with_options(adapter_scales=[1])
    with pytest.raises(errors.OptionError, match="must be finite"):
        riffle.Engine(MODEL, adapters=[first], adapter_scales=[float("nan")])
    with pytest.raises(errors.RiffleError, match="no such file or folder"):
        riffle.Engine(MODEL, adapters=[tmp_path / "none"])


def test_an_answer_is_the_one_that_transformers_writes(engine, text):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    tokens = engine.encode(text)[:200]
    found = engine.generate(tokens, max_tokens=24, ignore_end=True)
    expected = model.generate(
        torch.tensor([tokens]), max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=1
    )
    assert found.tokens == expected[0, len(tokens) :].tolist()
    assert (found.stop_reason, found.prompt_tokens) == ("max_tokens", 200)


def test_a_fact_is_found_under_policies(text):
    engine = riffle.Engine(MODEL, context=4096, prefill="xattention", decode="quest")
    answer = engine.generate(question(text), max_tokens=12)
    assert "73194" in answer.text
    assert engine.policies[0].startswith("xattention") if hasattr(engine, "policies") else True


def test_a_batch_answers_as_each_prompt_alone(text):
    engine = riffle.Engine(MODEL, context=2048, sequences=3, kv_type="f32")
    prompts = [text[:400], text[:400] + " And", text[1000:1200], [0, 5, 9, 30]]
    together = engine.batch(prompts, max_tokens=10, probabilities=2)
    for prompt, answer in zip(prompts, together):
        alone = engine.generate(prompt, max_tokens=10)
        assert answer.tokens == alone.tokens and answer.text == alone.text
        assert len(answer.probabilities) == len(answer.tokens)
        for token, chosen in zip(answer.probabilities, answer.tokens):
            assert token.token == chosen and len(token.likeliest) == 2
            assert token.likeliest[0][0] == chosen  # The most likely token is taken.
            assert token.log_probability <= 0
    assert together[1].reused_tokens > 0
    assert engine.batch([]) == []


def test_sampling_follows_its_seed(engine):
    answers = [engine.generate("And the", max_tokens=16, temperature=1.0, seed=seed).tokens for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_stop_texts_end_an_answer(engine, text):
    whole = engine.generate(text[:600], max_tokens=30).text
    word = whole.split()[2]
    cut = engine.generate(text[:600], max_tokens=30, stop=word)
    assert (cut.stop_reason, cut.stop) == ("stop_string", word)
    assert whole.startswith(cut.text) and word not in cut.text


def test_options_of_the_same_weights_can_be_changed(engine):
    other = engine.with_options(decode="streaming:sinks=4,window=32", context=512)
    assert (other.context, engine.context) == (512, 4096)
    assert "streaming" in repr(other) and "kv_type" in other._given
    assert other.generate("And", max_tokens=2).tokens


def test_a_plan_is_made_before_loading():
    plan = riffle.plan(MODEL, context=65536, kv_type="q8_0")
    assert plan.fits and plan.context_tokens == 65536
    assert plan["total_bytes"] >= plan["weights_bytes"] + plan["kv_bytes"]
    assert plan.kv_bytes < riffle.plan(MODEL, context=65536, kv_type="f16").kv_bytes
    small = riffle.plan(MODEL, context=65536, memory="20M")
    assert not small.fits and small.advice and "does not fit" in repr(small)
    with pytest.raises(errors.OutOfMemoryError, match="of memory"):
        riffle.Engine(MODEL, context=65536, memory="20M")
    with pytest.raises(MemoryError):
        riffle.Engine(MODEL, context=65536, memory=20 << 20)
    with pytest.raises(AttributeError, match="weights_bytes"):
        plan.nothing


def test_progress_is_told_and_may_end_a_call(engine, text):
    told: list[tuple[float, int]] = []
    engine.session().prefill(text[:8000], progress=lambda done, total: told.append((done, total)))
    assert told and told[-1][0] <= told[-1][1] and told == sorted(told)

    class Enough(Exception):
        pass

    def enough(done: float, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        engine.session().prefill(text[:8000], progress=enough)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"prefill": "nothing"}, errors.PolicyError, "nothing"),
        ({"prefill": "quest"}, errors.PolicyError, "quest"),
        ({"decode": "streaming:windw=8"}, errors.PolicyError, "windw"),
        ({"kv_type": "f17"}, errors.OptionError, "f16, bf16"),
        ({"context": 0}, errors.OptionError, "`context` is 0"),
        ({"context": 10**9}, errors.OptionError, "131072"),
        ({"batch_tokens": 0}, errors.OptionError, "`batch_tokens` is 0"),
        ({"page_tokens": 17}, errors.RiffleError, "multiple of 16"),
        ({"memory": "much"}, errors.OptionError, "`memory` is"),
        ({"attention": "rough"}, errors.OptionError, "exact or rounded"),
        ({"profile": "/no/such.toml"}, errors.OptionError, "/no/such.toml"),
        ({"threads": 0}, errors.OptionError, "threads is 0"),
        ({"kv_disk": "/no/such", "kv_ram": "1M"}, errors.OptionError, "no such folder"),
        ({"rope_scaling": "magic"}, errors.RiffleError, "magic"),
        ({"sequences": 0}, errors.OptionError, "`sequences`"),
        ({"auto": 2.0}, errors.OptionError, "`auto`"),
    ],
)
def test_wrong_options_are_named(options, error, said):
    with pytest.raises(error, match=said):
        riffle.Engine(MODEL, **options)


def test_wrong_arguments_are_told(engine):
    for call, error, said in [
        (lambda: riffle.Engine("/no/such/model"), errors.ModelError, "/no/such/model"),
        (lambda: riffle.Engine("owner/of-nothing"), errors.ModelError, "riffle pull owner/of-nothing"),
        (lambda: riffle.Engine(TEXT), errors.ModelError, "prophets.txt"),
        (lambda: riffle.Engine(MODEL, colour="red"), TypeError, "colour"),
        (lambda: riffle.Engine(MODEL, context="long"), TypeError, "context is 'long', but it must be a whole number, 0 or more"),
        (lambda: riffle.Engine(MODEL, context=-1), errors.OptionError, "context is -1, but it must be a whole number, 0 or more"),
        (lambda: riffle.Engine(MODEL, context=True), TypeError, "context is True"),
        (lambda: riffle.Engine(MODEL, context=2**70), errors.OptionError, "context is 1180591620717411303424"),
        (lambda: riffle.Engine(MODEL, audit="yes"), TypeError, "audit is 'yes', but it must be True or False"),
        (lambda: riffle.Engine(MODEL, prefill=3), TypeError, "prefill is 3, but it must be a text"),
        (lambda: engine.generate("And", max_tokens=-1), errors.OptionError, "max_tokens is -1"),
        (lambda: engine.generate("And", temperature="hot"), TypeError, "temperature is 'hot', but it must be a number"),
        (lambda: engine.generate(""), errors.OptionError, "empty"),
        (lambda: engine.generate([]), errors.OptionError, "empty"),
        (lambda: engine.generate([99999]), errors.OptionError, "token 99999 is not one of the model's 2048"),
        (lambda: engine.generate([-1]), errors.OptionError, "token -1"),
        (lambda: engine.generate([1.5]), TypeError, "whole numbers"),
        (lambda: engine.generate(3), TypeError, "the prompt is 3, but it must be a text, or its tokens"),
        (lambda: engine.batch("text"), TypeError, "several"),
        (lambda: engine.generate("And", temperature=-1.0), errors.OptionError, "`temperature`"),
        (lambda: engine.generate("And", top_p=0.0), errors.OptionError, "`top_p`"),
        (lambda: engine.generate("And", stop_tokens=[5000]), errors.OptionError, "5000"),
        (lambda: engine.generate("And", colour="red"), TypeError, "colour"),
        (lambda: engine.generate("And", draft="magic"), errors.OptionError, "`draft`"),
        (lambda: engine.generate([7] * 5000), errors.ContextExceededError, "4096"),
        (lambda: engine.chat([{"role": "user", "content": "hi"}]), errors.ModelError, "chat template"),
        (lambda: engine.logits("And the", first=99), errors.OptionError, "first is 99"),
        (lambda: engine.decode([2048]), errors.OptionError, "2048"),
    ]:
        with pytest.raises(error, match=said):
            call()


def test_tokens_and_texts_go_both_ways(engine):
    tokens = engine.encode("In the beginning")
    assert tokens[0] == engine.begin_token == 0 and engine.end_token == 1
    assert engine.decode(tokens) == "In the beginning"
    assert engine.encode("In the beginning", add_special=False) == tokens[1:]
    assert engine.decode(tokens, special=True) == "<|bos|>In the beginning"
    assert engine.decode(np.array(tokens)) == "In the beginning"


def test_a_closed_engine_says_so():
    engine = riffle.Engine(MODEL, context=256)
    session = engine.session()
    session.prefill("And")
    with engine:
        pass
    assert engine.is_closed and repr(engine) == "Engine(closed)"
    engine.close()
    for call in (
        lambda: engine.generate("And"),
        lambda: engine.session(),
        lambda: engine.encode("And"),
        lambda: engine.context,
        lambda: session.generate(max_tokens=2),
        lambda: session.tokens,
    ):
        with pytest.raises(errors.ClosedError, match="closed"):
            call()


def test_drafts_change_no_byte(text):
    engine = riffle.Engine(MODEL, context=2048)
    plain = engine.generate(text[:1500], max_tokens=40, ignore_end=True)
    drafted = engine.generate(text[:1500], max_tokens=40, ignore_end=True, draft="ngram@4")
    assert drafted.tokens == plain.tokens and plain.drafted_tokens == 0


def test_catalogue_and_policies_are_listed():
    known = {policy.name: policy for policy in riffle.policies()}
    assert {"full", "streaming", "quest", "xattention", "h2o", "snapkv"} <= known.keys()
    assert known["quest"].decode and not known["quest"].prefill
    assert riffle.parse_policy("streaming:sinks=4").startswith("streaming:sinks=4,window=")
