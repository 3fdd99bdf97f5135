"""Sequences and arrays that state more than memory holds are refused; nothing is allocated for a stated length."""

from __future__ import annotations

import numpy as np
import pytest

import riffle

HUGE = range(10**12)
PARTS = {"spans": [], "row_window": 0, "diagonals": [], "extras_start": 0, "extras": [], "summaries": []}


class Liar(list):
    def __len__(self) -> int:
        return 10**12


class Huge(list):
    """Rows that are each short enough, and together too many."""

    def __iter__(self):
        return (range(1 << 20) for _ in range(1 << 20))


@pytest.mark.parametrize("part", ["spans", "diagonals", "extras", "summaries"])
def test_a_part_that_states_a_huge_length_is_an_exception(part):
    with pytest.raises((ValueError, TypeError)):
        riffle.Selection({**PARTS, part: HUGE})


@pytest.mark.parametrize("given", [HUGE, np.broadcast_to(np.int64(1), (1 << 30,))])
def test_too_many_diagonals_are_refused_by_name(given):
    with pytest.raises(ValueError, match="diagonals is too long"):
        riffle.Selection({**PARTS, "diagonals": given})


def test_rows_that_are_together_too_long_are_refused():
    with pytest.raises(ValueError, match="extras is too long"):
        riffle.Selection({**PARTS, "extras": Huge()})


@pytest.mark.parametrize("part", ["spans", "summaries"])
def test_a_length_that_lies_is_not_believed(part):
    assert getattr(riffle.Selection({**PARTS, part: Liar([(0, 4)])}), part) == [(0, 4)]


def test_an_array_of_a_stated_shape_beyond_memory_is_refused():
    keys = np.broadcast_to(np.zeros((1, 1, 16), np.float32), (1, 1 << 40, 16))
    queries = np.zeros((1, 1, 16), np.float32)
    with pytest.raises(ValueError, match="more than this machine has available"):
        riffle.attend(queries, keys, keys)


def test_tokens_of_a_stated_length_are_refused_by_name(engine):
    for call in (engine.generate, engine.decode, engine.log_probabilities, lambda tokens: engine.generate("a", stop_tokens=tokens)):
        with pytest.raises(ValueError, match="too long: a sequence has at most"):
            call(HUGE)
    with pytest.raises(TypeError):
        engine.batch(HUGE)
