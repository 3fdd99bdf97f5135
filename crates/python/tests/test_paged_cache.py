"""Pages of arrays that arrive bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

import riffle
from riffle import errors

RANDOM = np.random.default_rng(6)


def rows(heads: int, tokens: int, width: int) -> np.ndarray:
    return RANDOM.standard_normal((heads, tokens, width)).astype(np.float32)


def feed(cache: riffle.PagedCache, q, k, v, cuts: list[int], **call) -> np.ndarray:
    parts = [
        cache.attend(q[:, a:b], k[:, a:b], v[:, a:b], **call) for a, b in zip([0, *cuts], [*cuts, q.shape[1]])
    ]
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("kv_type, close", [("f32", 2e-5), ("f16", 2e-3), ("bf16", 1e-2), ("q8_0", 2e-2), ("q4_0", 0.3)])
def test_rows_that_arrive_in_parts_attend_as_all_at_once(kv_type, close):
    q, k, v = rows(6, 700, 48), rows(2, 700, 48), rows(2, 700, 48)
    expected = riffle.attend(q, k, v)
    cache = riffle.PagedCache(layers=2, heads=6, kv_heads=2, head_dim=48, kv_type=kv_type)
    found = feed(cache, q, k, v, [300, 301, 640], layer=1, phase="prefill")
    np.testing.assert_allclose(found, expected, atol=close)
    assert (cache.tokens(0), cache.tokens(1), cache.tokens(9)) == (0, 700, 0)
    one = cache.attend(q[:, :1], k[:, :1], v[:, :1], layer=1)
    assert one.shape == (6, 1, 48) and cache.tokens(1) == 701


def test_rows_of_another_cache_are_appended():
    q, k, v = rows(4, 500, 32), rows(2, 500, 32), rows(2, 500, 32)
    cache = riffle.PagedCache(layers=1, heads=4, kv_heads=2, head_dim=32, kv_type="f32", decode="quest:from=0")
    cache.append(k[:, :400], v[:, :400])
    assert cache.tokens() == 400
    found = cache.attend(q[:, 400:], k[:, 400:], v[:, 400:])
    np.testing.assert_allclose(found, riffle.attend(q[:, 400:], k, v), atol=2e-5)
    with pytest.raises(errors.ArrayError, match="values are"):
        cache.append(k, v[:, :3])
    with pytest.raises(errors.CacheError, match="layer"):
        cache.append(k, v, layer=4)


def test_a_cache_goes_back(tmp_path):
    q, k, v = rows(4, 900, 32), rows(4, 900, 32), rows(4, 900, 32)
    cache = riffle.PagedCache(layers=1, heads=4, kv_heads=4, head_dim=32, kv_type="f32")
    whole = feed(cache, q, k, v, [500])
    cache.truncate(500)
    assert cache.tokens() == 500
    again = cache.attend(q[:, 500:], k[:, 500:], v[:, 500:])
    np.testing.assert_array_equal(again, whole[:, 500:])
    cache.truncate(0)
    assert cache.usage["pages"] == 0


def test_windows_free_the_pages_behind_them():
    q, k, v = rows(2, 3000, 16), rows(2, 3000, 16), rows(2, 3000, 16)
    expected = riffle.attend(q, k, v, riffle.selection(row_window=100))
    cache = riffle.PagedCache(layers=1, heads=2, kv_heads=2, head_dim=16, kv_type="f32", page_tokens=64)
    found = feed(cache, q, k, v, list(range(250, 3000, 250)), window=100)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert cache.usage["pages"] < 2 * 1000 / 64 and cache.tokens() == 3000
    with pytest.raises(errors.SessionError, match="left the cache"):
        cache.truncate(100)


def test_old_pages_lie_on_disk(tmp_path):
    q, k, v = rows(2, 4000, 64), rows(2, 4000, 64), rows(2, 4000, 64)
    options = {"layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 64, "kv_type": "f32", "chunk_tokens": 256}
    options["page_tokens"] = 32
    near = riffle.PagedCache(**options)
    # Decoded token by token the arithmetic is the same.
    expected = feed(near, q, k, v, [3999])
    far = riffle.PagedCache(**options, kv_ram="1M", kv_disk=tmp_path, context=4096)
    found = feed(far, q, k, v, [3999])
    np.testing.assert_array_equal(found, expected)
    assert far.usage["disk_bytes"] > 0 and far.usage["ram_bytes"] <= 1 << 20
    with pytest.raises(errors.OptionError, match="needs kv_ram"):
        riffle.PagedCache(**options, kv_disk=tmp_path)
    with pytest.raises(errors.OutOfMemoryError, match="at least"):
        riffle.PagedCache(**options, kv_disk=tmp_path, kv_ram=10, context=4096)


@pytest.mark.parametrize("policy", [p.name for p in riffle.policies() if p.prefill or p.decode])
def test_every_policy_attends_to_what_it_selects(policy):
    info = {p.name: p for p in riffle.policies()}[policy]
    phases = {"prefill": policy if info.prefill else "full", "decode": policy if info.decode else "full"}
    cache = riffle.PagedCache(layers=4, heads=4, kv_heads=2, head_dim=32, kv_type="f32", audit=True, **phases)
    q, k, v = rows(4, 1500, 32), rows(2, 1500, 32), rows(2, 1500, 32)
    for layer in range(4):
        found = feed(cache, q, k, v, [1490, *range(1491, 1500)], layer=layer)
        assert np.isfinite(found).all() and found.shape == q.shape
    report = cache.audit
    audited = cache.take_audited()
    assert audited and cache.take_audited() == []
    assert all(0 <= query.kept_mass <= 1.0 for query in audited)
    assert 0 < report["mean_mass"] <= 1.0 + 1e-6
    if policy == "full":
        np.testing.assert_allclose(found, riffle.attend(q, k, v), atol=2e-5)
        assert report["mean_mass"] > 0.9999 and cache.usage["density"] == 1.0


def test_kept_mass_is_that_of_the_spans_that_were_read():
    q, k, v = rows(2, 600, 16), rows(2, 600, 16), rows(2, 600, 16)
    cache = riffle.PagedCache(
        layers=1, heads=2, kv_heads=2, head_dim=16, kv_type="f32", prefill="streaming:sinks=4,window=64,from=0", audit=True
    )
    cache.attend(q, k, v)
    audited = cache.take_audited()
    assert len(audited) > 20
    for query in audited[::7]:
        logits = k[query.kv_head, : query.position + 1] @ q[query.head, query.position] * 16**-0.5
        weights = np.exp(logits - logits.max())
        kept = sum(weights[a:b].sum() for a, b in query.read) / weights.sum()
        assert abs(kept - query.kept_mass) < 1e-4
        assert query.read == riffle.selection([(0, 4)], row_window=64).reads(query.position, 1)


def test_wrong_rows_leave_the_cache_as_it_was():
    cache = riffle.PagedCache(layers=1, heads=4, kv_heads=2, head_dim=16)
    q, k, v = rows(4, 3, 16), rows(2, 3, 16), rows(2, 3, 16)
    for call, said in [
        (lambda: cache.attend(q[:2], k, v), "queries are"),
        (lambda: cache.attend(q, k[:, :2], v), "keys are"),
        (lambda: cache.attend(q, k, v[..., :8]), "values are"),
        (lambda: cache.attend(q, k, v, layer=1), "layer"),
        (lambda: cache.attend(q, k, v, scale=float("inf")), "scale"),
        (lambda: cache.attend(q, k, v, window=0), "window"),
        (lambda: cache.attend(q, k, v, phase="x"), "phase"),
    ]:
        with pytest.raises(errors.RiffleError, match=said):
            call()
    assert cache.tokens() == 0
    for options, said in [
        ({"layers": 0}, "layers"),
        ({"heads": 3}, "`heads` is 3"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": 16385}, "head_dim is 16385"),
        ({"kv_type": "f8"}, "kv_type"),
        ({"prefill": "quest"}, "prefill"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"page_tokens": 5}, "page_tokens"),
        ({"attention": "x"}, "exact or rounded"),
    ]:
        with pytest.raises(errors.RiffleError, match=said):
            riffle.PagedCache(**{"layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, **options})
    cache.close()
    assert cache.is_closed
    with pytest.raises(errors.ClosedError, match="cache is closed"):
        cache.attend(q, k, v)


def test_a_budget_is_kept():
    cache = riffle.PagedCache(layers=1, heads=2, kv_heads=2, head_dim=64, kv_type="f32", kv_ram="300K")
    q, k, v = rows(2, 256, 64), rows(2, 256, 64), rows(2, 256, 64)
    cache.attend(q, k, v)
    with pytest.raises(errors.CacheError):
        cache.attend(q, k, v)
    assert cache.tokens() == 256 and cache.usage["ram_bytes"] <= 300 << 10
