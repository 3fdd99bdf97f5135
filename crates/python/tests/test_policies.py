"""Policies written in Python."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import MODEL

import riffle
from riffle import errors


class Streaming(riffle.Policy):
    """The catalogue's `streaming:sinks=4,window=32`, in Python."""

    reads_keys = False
    follows_from_keys = True

    def select(self, queries: np.ndarray, context: riffle.SelectContext) -> riffle.Selection:
        assert queries.shape[0] == context.rows and context.keys is None
        return riffle.selection([(0, 4)], row_window=32)


class Largest(riffle.Policy):
    """The keys with the largest logits of each query, over the heads of its group."""

    def __init__(self, count: int):
        self.count = count
        self.seen: list[riffle.SelectContext] = []

    def select(self, queries: np.ndarray, context: riffle.SelectContext) -> riffle.Selection:
        self.seen.append(context)
        assert context.keys is not None and context.keys.shape == (context.tokens, queries.shape[2])
        logits = np.einsum("rgd,td->rt", queries, context.keys)
        extras = []
        for row, own in enumerate(logits):
            own = own[: context.start + row + 1]
            extras.append(np.sort(np.argsort(-own, kind="stable")[: self.count]).tolist())
        return riffle.selection(row_extras=extras, first_row=context.start)


def test_a_policy_in_python_is_the_same_as_in_rust(text):
    riffle.register("streaming-in-python", Streaming())
    tokens = None
    answers = []
    for name in ("streaming-in-python", "streaming:sinks=4,window=32,from=0"):
        engine = riffle.Engine(MODEL, context=1024, prefill=name, decode=name)
        tokens = tokens or engine.encode(text)[:700]
        session = engine.session()
        session.prefill(tokens)
        answers.append((session.generate(max_tokens=10, ignore_end=True).tokens, session.density))
    assert answers[0] == answers[1] and answers[0][1] < 0.2


def test_a_policy_that_reads_keys_runs_in_the_engine(text):
    policy = Largest(16)
    riffle.register("largest-in-python", policy)
    engine = riffle.Engine(MODEL, context=1024, decode="largest-in-python", audit=True)
    answer = engine.generate(f"{text[:1500]} And it", max_tokens=6, ignore_end=True)
    assert len(answer.tokens) == 6
    assert {context.phase for context in policy.seen} == {"decode"}
    assert {(c.layer, c.kv_head) for c in policy.seen} == {(layer, head) for layer in range(5) for head in range(2)}
    q = np.random.default_rng(1).standard_normal((4, 8, 64)).astype(np.float32)
    k = np.random.default_rng(2).standard_normal((2, 50, 64)).astype(np.float32)
    selections = riffle.select("largest-in-python", q, k)
    assert selections[0].pair_count(42, 8) == 8 * 16


def test_an_exception_of_a_policy_ends_the_call(text):
    class Broken(riffle.Policy):
        def select(self, queries, context):
            raise ZeroDivisionError("no such luck")

    class Wrong(riffle.Policy):
        def select(self, queries, context):
            return [1, 2]

    riffle.register("broken", Broken())
    riffle.register("wrong", Wrong())
    with pytest.raises(ZeroDivisionError, match="no such luck"):
        riffle.Engine(MODEL, context=512, prefill="broken").generate(text[:900], max_tokens=2)
    with pytest.raises(errors.OptionError, match="riffle.Selection"):
        riffle.Engine(MODEL, context=512, decode="wrong").generate(text[:900], max_tokens=2)
    cache = riffle.PagedCache(layers=1, heads=1, kv_heads=1, head_dim=16, decode="broken")
    x = np.ones((1, 1, 16), np.float32)
    with pytest.raises(ZeroDivisionError):
        cache.attend(x, x, x)
    # An earlier failure must not stay.
    riffle.Engine(MODEL, context=512).generate(text[:300], max_tokens=2)


def test_wrong_registrations_are_refused():
    for name, said in [("full", "Riffle's own"), ("", "lower case"), ("Größe", "lower case"), ("a b", "lower case")]:
        with pytest.raises(errors.OptionError, match=said):
            riffle.register(name, Streaming())
    with pytest.raises(TypeError, match="riffle.Policy"):
        riffle.register("thing", object())
    nothing = Streaming()
    nothing.prefill = nothing.decode = False
    with pytest.raises(errors.OptionError, match="phase"):
        riffle.register("nothing", nothing)
    only = Streaming()
    only.decode = False
    riffle.register("only-prefill", only)
    with pytest.raises(errors.PolicyError, match="decode"):
        riffle.Engine(MODEL, decode="only-prefill")
    assert "only-prefill" in {policy.name for policy in riffle.policies()}


def test_a_policy_in_python_is_compared_in_the_laboratory(text):
    pytest.importorskip("pandas")
    from riffle import evaluation

    riffle.register("streaming-in-python", Streaming())
    engine = riffle.Engine(MODEL, context=2048)
    frame = evaluation.compare(
        engine,
        text,
        policies=["decode=streaming-in-python", "decode=streaming:sinks=4,window=32,from=0"],
        tasks=["needle:multi-key:late"],
        lengths=[1024],
        depths=3,
    )
    assert len(frame) == 3
    scores = dict(zip(frame["policy"], frame["density"]))
    mine, theirs = (next(v for k, v in scores.items() if part in k) for part in ("in-python", "sinks=4"))
    assert mine == theirs < 1.0
