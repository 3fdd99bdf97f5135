"""Kernels on arrays, beside numpy's and torch's own arithmetic."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import riffle
from riffle import errors

RANDOM = np.random.default_rng(5)


def arrays(heads: int, kv_heads: int, rows: int, tokens: int, width: int, kind: type = np.float32) -> list[np.ndarray]:
    shapes = [(heads, rows, width), (kv_heads, tokens, width), (kv_heads, tokens, width)]
    return [RANDOM.standard_normal(shape).astype(kind) for shape in shapes]


def by_numpy(q, k, v, mask: np.ndarray, scale: float, cap: float | None = None) -> np.ndarray:
    """Masked attention in float64: mask is `[kv_heads, rows, tokens]`."""
    group = len(q) // len(k)
    out = np.zeros(q.shape)
    for head in range(len(q)):
        logits = q[head].astype(np.float64) @ k[head // group].astype(np.float64).T * scale
        if cap is not None:
            logits = cap * np.tanh(logits / cap)
        logits = np.where(mask[head // group], logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        out[head] = weights / weights.sum(-1, keepdims=True) @ v[head // group].astype(np.float64)
    return out


@pytest.mark.parametrize("width", [16, 20, 64, 80])
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (5, 1)])
def test_attention_is_that_of_numpy(width, heads, kv_heads):
    q, k, v = arrays(heads, kv_heads, 7, 300, width)
    found = riffle.attend(q, k, v)
    positions = np.arange(293, 300)[:, None] >= np.arange(300)
    expected = by_numpy(q, k, v, np.broadcast_to(positions, (kv_heads, 7, 300)), width**-0.5)
    assert found.shape == q.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)
    refer = riffle.reference(q, k, v)
    np.testing.assert_allclose(refer.output, expected, atol=1e-6)
    np.testing.assert_allclose(refer.mass.sum(), 7 * heads, rtol=1e-9)


def test_a_selection_is_what_is_read():
    q, k, v = arrays(4, 2, 9, 200, 32)
    one = riffle.selection([(0, 4), (60, 90)], row_window=5, diagonals=[40, 64], row_extras=[[7, 9]], first_row=195)
    other = riffle.selection(row_window=150)
    found, sums = riffle.attend(q, k, v, [one, other], scale=0.3, soft_cap=20.0, log_sum_exp=True)
    mask = np.stack([selection.mask(191, 9, 200) for selection in (one, other)])
    np.testing.assert_allclose(found, by_numpy(q, k, v, mask, 0.3, 20.0), atol=2e-5)
    refer = riffle.reference(q, k, v, [one, other], scale=0.3, soft_cap=20.0)
    np.testing.assert_allclose(found, refer.output, atol=2e-5)
    np.testing.assert_allclose(sums, refer.log_sum_exp, atol=2e-5)
    assert one.pair_count(191, 9) == mask[0].sum()


def test_block_means_stand_for_their_tokens():
    q, k, v = arrays(2, 2, 3, 96, 16)
    selection = riffle.selection([(64, 80)], row_window=4, summaries=[(0, 32), (32, 64), (80, 96)])
    found = riffle.attend(q, k, v, selection)
    np.testing.assert_allclose(found, riffle.reference(q, k, v, selection).output, atol=2e-5)
    assert not np.allclose(found, riffle.attend(q, k, v, riffle.selection([(64, 80)], row_window=4)), atol=1e-3)


def test_block_means_stand_for_the_tokens_that_are_not_read():
    q, k, v = arrays(2, 2, 3, 96, 16)
    selection = riffle.selection([(0, 20)], row_window=3, summaries=[(0, 32), (32, 64)], summarizes_parts=True)
    assert selection.summarizes_parts and pickle.loads(pickle.dumps(selection)) == selection
    found = riffle.attend(q, k, v, selection)
    np.testing.assert_allclose(found, riffle.reference(q, k, v, selection).output, atol=2e-5)
    # Tokens of a block that are all the same lose nothing.
    for rows in (k, v):
        rows[:, :32], rows[:, 32:64] = rows[:, :1], rows[:, 32:33]
    whole = riffle.selection([(0, 64)], row_window=3)
    np.testing.assert_allclose(riffle.attend(q, k, v, selection), riffle.attend(q, k, v, whole), atol=2e-5)


def test_arrays_are_read_where_they_lie():
    q, k, v = arrays(4, 2, 6, 120, 32)
    expected = riffle.attend(q, k, v)
    wide = RANDOM.standard_normal((120, 2, 3, 32)).astype(np.float32)
    wide[:, :, 1] = k.transpose(1, 0, 2)
    for keys in (
        wide[:, :, 1].transpose(1, 0, 2),
        np.asfortranarray(k),
        np.flip(np.flip(k, 1).copy(), 1),
        k[:, :, ::1],
    ):
        np.testing.assert_array_equal(riffle.attend(q, keys, v), expected)
    frozen = k.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(riffle.attend(q, frozen, v), expected)


def test_half_precision_is_taken_as_it_is():
    q, k, v = arrays(4, 2, 3, 64, 32, np.float16)
    expected = riffle.attend(*(part.astype(np.float32) for part in (q, k, v)))
    np.testing.assert_array_equal(riffle.attend(q, k, v), expected)


def test_tensors_of_torch_come_and_go():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(part) for part in arrays(4, 2, 5, 90, 32))
    found = riffle.attend(q, k, v)
    assert isinstance(found, torch.Tensor)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(5, 90).tril(85).bool(), enable_gqa=True
    )
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    halves = [part.bfloat16() for part in (q, k, v)]
    widened = [part.float() for part in halves]
    torch.testing.assert_close(riffle.attend(*halves), riffle.attend(*widened), atol=0, rtol=0)
    q.requires_grad_()
    torch.testing.assert_close(riffle.attend(q, k, v), found)
    # Whoever speaks DLPack is read as well.

    class Speaker:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **given):
            return self.tensor.__dlpack__()

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    spoken = riffle.attend(Speaker(q.detach()), Speaker(k), Speaker(v))
    np.testing.assert_array_equal(spoken, found.numpy())


@pytest.mark.parametrize("name", ["streaming:sinks=4,window=16", "xattention", "vertical-slash", "tri-shape"])
def test_policies_select_by_name(name):
    q, k, v = arrays(4, 2, 128, 1024, 32)
    selections = riffle.select(name, q, k)
    assert len(selections) == 2
    found = riffle.attend(q, k, v, name)
    np.testing.assert_array_equal(found, riffle.attend(q, k, v, selections))
    assert selections[0].pair_count(896, 128) <= riffle.selection([(0, 1024)]).pair_count(896, 128)
    with pytest.raises(errors.PolicyError, match="prefill"):
        riffle.select("quest", q, k)
    assert riffle.select("quest", q[:, -1:], k, phase="decode")[0].spans


def test_selections_are_data():
    selection = riffle.selection([(5, 9), (0, 4), (3, 6)], row_window=2, diagonals=[9, 3, 9])
    assert selection.spans == [(0, 9)] and selection.diagonals == [3, 9] and selection.row_window == 2
    assert selection == riffle.selection([(0, 9)], row_window=2, diagonals=[3, 9])
    assert hash(selection) == hash(riffle.selection([(0, 9)], row_window=2, diagonals=[3, 9]))
    assert selection != riffle.selection([(0, 9)])
    assert selection.contains(20, 8) and not selection.contains(20, 10)
    assert selection.reads(20, 1) == [(0, 9), (11, 12), (17, 18), (19, 21)]
    assert "spans 0..9" in repr(selection)
    assert repr(riffle.selection()) == "Selection(nothing)"


def test_pictures_show_what_is_read():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from riffle import pictures

    q, k, _ = arrays(4, 2, 64, 256, 32)
    axes = pictures.selection(riffle.select("xattention", q, k)[0], start=192, rows=64)
    image = axes.images[0].get_array()
    assert image.shape == (64, 256)
    assert image.sum() > 0
    svg = pictures.selection_svg(riffle.selection(row_window=8), start=0, rows=32)
    assert svg.startswith("<svg") and svg.count("<rect") > 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda q, k, v: (q[0], k, v), "queries has 2 dimensions"),
        (lambda q, k, v: (q, k[:, :5], v), "their shapes must be equal"),
        (lambda q, k, v: (q[..., :8], k, v), "heads of 8 elements"),
        (lambda q, k, v: (q[:3], k, v), "3 query heads do not share 2 KV heads"),
        (lambda q, k, v: (q.astype(np.float64), k, v), "type float64"),
        (lambda q, k, v: (q.astype(np.uint16), k, v), "uint16"),
        (lambda q, k, v: (q[:, :0], k, v), "is empty"),
        (lambda q, k, v: (q.tolist(), k, v), "no array"),
        (lambda q, k, v: (q.astype(">f4"), k, v), "queries"),
        (lambda q, k, v: (q.astype(object), k, v), "queries"),
        (lambda q, k, v: (np.concatenate([q] * 9, 1), k, v), "say at which position they start"),
    ],
)
def test_wrong_arrays_are_named(change, said):
    with pytest.raises(errors.ArrayError, match=said):
        riffle.attend(*change(*arrays(4, 2, 5, 40, 16)))


def test_arrays_that_are_not_aligned_are_refused_or_read():
    q, k, v = arrays(4, 2, 5, 40, 16)
    bytes_of = np.zeros(k.nbytes + 1, np.uint8)
    bytes_of[1:] = np.frombuffer(k.tobytes(), np.uint8)
    unaligned = np.frombuffer(bytes_of.data, np.float32, count=k.size, offset=1).reshape(k.shape)
    packed = np.zeros(k.shape, np.dtype([("a", np.uint8), ("k", np.float32)]))
    packed["k"] = k
    for keys in (unaligned, packed["k"]):
        with pytest.raises(errors.ArrayError, match="keys"):
            riffle.attend(q, keys, v)


def test_wrong_calls_are_named():
    q, k, v = arrays(4, 2, 5, 40, 16)
    for call, said in [
        (lambda: riffle.attend(q, k, v, [riffle.selection()] * 3), "3 selections for 2 KV heads"),
        (lambda: riffle.attend(q, k, v, scale=float("nan")), "scale is NaN"),
        (lambda: riffle.attend(q, k, v, soft_cap=0.0), "soft_cap is 0"),
        (lambda: riffle.attend(q, k, v, start=2**40), "beyond"),
        (lambda: riffle.selection([(5, 3)]), "is no span"),
        (lambda: riffle.selection([(0, 2**50)]), "is no span"),
        (lambda: riffle.selection(diagonals=[2**40]), "beyond the largest position"),
        (lambda: riffle.selection().mask(0, 2**20, 2**20), "larger"),
        (lambda: riffle.select("full", q, k, phase="later"), "phase"),
    ]:
        with pytest.raises(errors.RiffleError, match=said):
            call()
    with pytest.raises(TypeError):
        riffle.attend(q, k, v, [3, 4])
