"""Riffle's attention in models of transformers, beside `sdpa`."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL, ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import riffle.transformers  # noqa: E402
from riffle import errors  # noqa: E402

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(name: str):
    if name == "llama":
        return transformers.LlamaConfig(**SMALL, head_dim=20)
    if name == "qwen3":
        return transformers.Qwen3Config(**SMALL, head_dim=32)
    if name == "gemma3":
        return transformers.Gemma3TextConfig(
            **SMALL,
            head_dim=32,
            sliding_window=24,
            layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        )
    if name == "gemma2":
        return transformers.Gemma2Config(
            **SMALL, head_dim=32, sliding_window=24, attn_logit_softcapping=20.0, query_pre_attn_scalar=48
        )
    if name == "phi":
        return transformers.PhiConfig(**{**SMALL, "num_key_value_heads": 4}, partial_rotary_factor=0.5)
    if name == "mistral":
        return transformers.MistralConfig(**SMALL, head_dim=16, sliding_window=32)
    return transformers.Qwen3_5TextConfig(
        **SMALL,
        head_dim=32,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )


NAMES = ["llama", "qwen3", "gemma3", "gemma2", "phi", "mistral", "qwen3_5"]


def tiny(name: str, attention: str = "riffle"):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config(name), attn_implementation=attention, dtype=torch.float32)
    # Weights of their first scale attend to everything alike, which would hide mistakes.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    return model.eval()


def tokens_of(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 128, (1, count), generator=torch.Generator().manual_seed(seed))


def exact(name: str) -> str:
    # sdpa takes no soft cap.
    return "eager" if name == "gemma2" else "sdpa"


@pytest.mark.parametrize("name", NAMES)
def test_full_attention_equals_sdpa(name):
    expected_model = tiny(name, exact(name))
    model = tiny(name, "sdpa" if name != "gemma2" else "eager")
    model.set_attn_implementation("riffle")
    tokens = tokens_of(150)
    with torch.no_grad():
        expected = expected_model(tokens).logits
        # Without a cache, with that of transformers, and with Riffle's, whole and in parts.
        for found in (model(tokens, use_cache=False).logits, model(tokens).logits):
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
        cache = riffle.transformers.Cache(model, kv_type="f32", page_tokens=32, chunk_tokens=64)
        parts = [model(part, cache=cache).logits for part in tokens.split([90, 1, 1, 40, 1, 17], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), expected, atol=2e-4, rtol=0)
    assert cache.get_seq_length() == 150 and cache.usage["tokens"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_generated_tokens_are_those_of_sdpa(name):
    model = tiny(name, exact(name))
    tokens = tokens_of(60, seed=2)
    options = {"max_new_tokens": 40, "do_sample": False, "min_new_tokens": 40}
    expected = model.generate(tokens, **options)
    model.set_attn_implementation("riffle")
    cache = riffle.transformers.Cache(model, kv_type="f32")
    assert torch.equal(model.generate(tokens, cache=cache, **options), expected)
    assert torch.equal(model.generate(tokens, **options), expected)
    if name != "qwen3_5":
        # A conversation goes on with the same cache.
        more = torch.cat([expected, tokens_of(9, seed=5)], 1)
        again = model.generate(more, cache=cache, **options)
        model.set_attn_implementation(exact(name))
        assert torch.equal(again, model.generate(more, **options))


@pytest.mark.skipif(not os.environ.get("RIFFLE_REAL_MODELS"), reason="RIFFLE_REAL_MODELS names no folder with SmolLM2")
def test_full_attention_equals_sdpa_in_smollm2(text):
    path = Path(os.environ["RIFFLE_REAL_MODELS"]) / "smollm2-135m-instruct-q4_1.gguf"
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tokens = torch.tensor([riffle.Engine(path, context=2048).encode(text)[:600]])
    with torch.no_grad():
        model.set_attn_implementation("sdpa")
        expected = model(tokens).logits
        model.set_attn_implementation("riffle")
        cache = riffle.transformers.Cache(model, kv_type="f32")
        parts = [model(part, cache=cache).logits for part in tokens.split([590, 1, 1, 8], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_5"])
@pytest.mark.parametrize("kv_type, close", [("f16", 0.02), ("q8_0", 0.3)])
def test_other_formats_stay_close(name, kv_type, close):
    model = tiny(name)
    tokens = tokens_of(200)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        found = model(tokens, cache=riffle.transformers.Cache(model, kv_type=kv_type)).logits
    assert (found - expected).abs().max() < close * expected.abs().max()


def test_half_precision_models_attend_in_their_type():
    model = tiny("llama").bfloat16()
    tokens = tokens_of(50)
    with torch.no_grad():
        found = model(tokens, cache=riffle.transformers.Cache(model)).logits
        model.set_attn_implementation("sdpa")
        expected = model(tokens).logits
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("policy", [p.name for p in riffle.policies() if p.name.isidentifier() or "-" in p.name])
def test_every_policy_runs_by_name(policy):
    info = {p.name: p for p in riffle.policies()}[policy]
    if info.source == "Python":
        pytest.skip("registered by another test")
    model = tiny("llama")
    phases = {"prefill": policy if info.prefill else "full", "decode": policy if info.decode else "full"}
    cache = riffle.transformers.Cache(model, kv_type="f32", audit=True, **phases)
    found = model.generate(tokens_of(700), cache=cache, max_new_tokens=5, min_new_tokens=5)
    assert found.shape == (1, 705)
    assert 0 < cache.audit["mean_mass"] <= 1 + 1e-6
    assert {query.layer for query in cache.take_audited()} == {0, 1, 2, 3}


def test_kept_mass_and_selections_are_returned_on_request():
    model = tiny("qwen3")
    cache = riffle.transformers.Cache(model, prefill="streaming:sinks=4,window=64,from=0", audit=True)
    with torch.no_grad():
        model(tokens_of(400), cache=cache)
    audited = cache.take_audited()
    late = [query for query in audited if query.position >= 100]
    assert late and all(query.read[0] == (0, 4) and query.read[-1][1] == query.position + 1 for query in late)
    assert all(0 < query.kept_mass <= 1 for query in audited) and min(query.kept_mass for query in late) < 0.9
    plain = riffle.transformers.Cache(model)
    assert plain.audit is None and plain.take_audited() == []


def test_a_sparse_policy_reads_less(text):
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="riffle").eval()
    engine = riffle.Engine(MODEL, context=4096)
    half = len(text) // 2
    prompt = (
        f"{text[:5000]} The pass key for amber falcon is 73194. {text[half : half + 4000]} "
        "What is the pass key for amber falcon? The pass key for amber falcon is"
    )
    tokens = torch.tensor([engine.encode(prompt)])
    cache = riffle.transformers.Cache(model, kv_type="q8_0", prefill="xattention:from=0", decode="quest:from=0")
    found = model.generate(tokens, cache=cache, max_new_tokens=8, do_sample=False)
    assert "73194" in engine.decode(found[0, tokens.shape[1] :].tolist())
    assert cache.usage["density"] < 0.9


def test_pages_lie_on_disk(tmp_path):
    model = tiny("llama")
    tokens = tokens_of(1200)
    with torch.no_grad():
        near = riffle.transformers.Cache(model, kv_type="f32", page_tokens=32)
        far = riffle.transformers.Cache(
            model, kv_type="f32", page_tokens=32, kv_ram="2M", kv_disk=tmp_path, context=2048
        )
        expected, found = (model(tokens, cache=cache).logits for cache in (near, far))
    assert far.usage["disk_bytes"] > 0
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_cache_goes_back_and_begins_anew():
    model = tiny("gemma3")
    tokens = tokens_of(120)
    cache = riffle.transformers.Cache(model, kv_type="f32")
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        model(torch.cat([tokens[:, :80], tokens_of(30, 9)], 1), cache=cache)
        cache.crop(-30)
        assert cache.get_seq_length() == 80
        found = model(tokens[:, 80:], cache=cache).logits
        torch.testing.assert_close(found, expected[:, 80:], atol=2e-4, rtol=0)
        cache.reset()
        torch.testing.assert_close(model(tokens, cache=cache).logits, expected, atol=2e-4, rtol=0)


def refused(said: str):
    return pytest.raises(errors.UnsupportedError, match=said)


def test_what_cannot_be_honoured_is_refused_by_name():
    model = tiny("llama")
    tokens = tokens_of(20)
    cache = riffle.transformers.Cache
    with torch.no_grad():
        with refused("a batch of 2 sequences"):
            model(tokens.repeat(2, 1))
        with refused("a batch of 2 sequences"):
            model.generate(tokens.repeat(2, 1), cache=cache(model), max_new_tokens=2)
        padded = torch.ones_like(tokens)
        padded[0, :3] = 0
        with refused("padding: 3 tokens"):
            model(tokens, attention_mask=padded)
        with refused("padding: 3 tokens"):
            model.generate(tokens, attention_mask=padded, cache=cache(model), max_new_tokens=2)
        with refused("mask of shape"):
            model(tokens, attention_mask=torch.ones(1, 1, 20, 20, dtype=torch.bool).tril())
        packed = torch.cat([torch.arange(8), torch.arange(12)])[None]
        with refused("packed sequences"):
            model(tokens, position_ids=packed, use_cache=False)
        with refused("several sequences in one cache|a batch of"):
            model.generate(tokens, cache=cache(model), max_new_tokens=3, num_beams=2)
        with refused("output_attentions"):
            model(tokens, output_attentions=True)
    with refused("gradients"):
        model(tokens)
    model.train()
    model.config.attention_dropout = 0.1
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with refused("dropout"), torch.no_grad():
        model(tokens)


def test_other_masks_are_refused_by_name():
    from transformers import masking_utils

    model = tiny("llama")
    embeds = torch.zeros(1, 12, 64)
    arguments = {"config": model.config, "inputs_embeds": embeds, "attention_mask": None, "cache": None}
    assert masking_utils.create_causal_mask(**arguments) is None
    with refused("mask of the model's own"):
        masking_utils.create_causal_mask(**arguments, or_mask_function=lambda b, h, q, k: k < 3)
    with refused("neither causal"):
        masking_utils.create_bidirectional_mask(model.config, embeds, None)
    model.config.attention_chunk_size = 5
    with refused("neither causal"):
        masking_utils.create_chunked_causal_mask(**arguments)
    model.config.sliding_window = 5
    assert masking_utils.create_sliding_window_causal_mask(**arguments) is None


def test_models_that_do_not_fit_are_refused_by_name():
    with refused("kind 'chunked_attention'|chunked"):
        riffle.transformers.Cache(transformers.LlamaConfig(**SMALL, layer_types=["chunked_attention"] * 4, attention_chunk_size=8))
    with refused("no layer that attends"):
        settings = {**SMALL, "layer_types": ["linear_attention"] * 4}
        riffle.transformers.Cache(transformers.Qwen3_5TextConfig(**settings))
    model = tiny("llama", "sdpa")
    cache = riffle.transformers.Cache(model)
    with torch.no_grad():
        model(tokens_of(5), cache=cache)
        with refused("set_attn_implementation"):
            model(tokens_of(5), cache=cache)
    with pytest.raises(errors.PolicyError, match="nothing"):
        riffle.transformers.Cache(model, decode="nothing")
    with pytest.raises(errors.OptionError, match="kv_type"):
        riffle.transformers.Cache(model, kv_type="f8")
    model.set_attn_implementation("riffle")
    used = riffle.transformers.Cache(model)
    with torch.no_grad():
        model(tokens_of(5), cache=used)
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle"):
            copied(used)
    for call in (lambda: used.layers[0].offload(), lambda: used.layers[0].reorder_cache(torch.tensor([0]))):
        with refused("."):
            call()
    used.close()
    with pytest.raises(errors.ClosedError), torch.no_grad():
        model(tokens_of(1), cache=used)


def test_fixtures_are_the_same_in_engine_and_model(text):
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="riffle").eval()
    engine = riffle.Engine(MODEL, context=1024, kv_type="f32")
    tokens = engine.encode(text)[:500]
    with torch.no_grad():
        found = model(torch.tensor([tokens]), cache=riffle.transformers.Cache(model, kv_type="f32")).logits[0]
    np.testing.assert_allclose(found.numpy(), engine.logits(tokens), atol=2e-3)
    assert (ROOT / "fixtures").is_dir()
