"""Pictures of selections: with matplotlib, or as SVG without anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._riffle import Selection

__all__ = ["selection", "selection_svg"]

_READ = "#2f6f9f"
_UNSEEN = "#e9e9e9"


def selection(
    selection: Selection, *, start: int, rows: int, tokens: int | None = None, axes: Any = None, title: str | None = None
) -> Any:
    """Draws what the queries `start` to `start + rows` read of `tokens` keys, by default all up to the last query. Returns the axes
    of matplotlib."""
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    tokens = start + rows if tokens is None else tokens
    if axes is None:
        _, axes = plt.subplots(figsize=(6.4, 6.4 * min(1.0, max(0.15, rows / tokens))), layout="constrained")
    shown = _cells(selection, start, rows, tokens)
    axes.imshow(
        shown,
        cmap=ListedColormap(["white", _UNSEEN, _READ]),
        vmin=0,
        vmax=2,
        extent=(0, tokens, start + rows, start),
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_xlabel("position of the key")
    axes.set_ylabel("position of the query")
    pairs = selection.pair_count(start, rows)
    causal = sum(min(query + 1, tokens) for query in range(start, start + rows))
    share = f"{100 * pairs / max(causal, 1):.1f} % of the pairs are read"
    axes.set_title(share if title is None else f"{title}: {share}")
    return axes


def selection_svg(selection: Selection, *, start: int, rows: int, tokens: int | None = None, width: int = 480) -> str:
    """The same as an SVG, which notebooks show and which needs no other package."""
    tokens = start + rows if tokens is None else tokens
    shown = _cells(selection, start, rows, tokens, most=240)
    height = max(24, round(width * shown.shape[0] / shown.shape[1]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {shown.shape[1]} {shown.shape[0]}" preserveAspectRatio="none" shape-rendering="crispEdges">',
        f'<rect width="{shown.shape[1]}" height="{shown.shape[0]}" fill="white"/>',
    ]
    for number, row in enumerate(shown):
        edges = np.flatnonzero(np.diff(row, prepend=0, append=0))
        for begin, end in zip(edges[:-1], edges[1:]):
            if row[begin]:
                color = _READ if row[begin] == 2 else _UNSEEN
                parts.append(f'<rect x="{begin}" y="{number}" width="{end - begin}" height="1" fill="{color}"/>')
    return "".join([*parts, "</svg>"])


def _cells(selection: Selection, start: int, rows: int, tokens: int, most: int = 4096) -> np.ndarray:
    """`[rows, tokens]`, or fewer cells for large pictures: 0 behind the query, 1 not read, 2 read in part or whole."""
    row_step, token_step = -(-rows // most), -(-tokens // most)
    picked = range(start, start + rows, row_step)
    cells = np.zeros((len(picked), -(-tokens // token_step)), np.uint8)
    for number, query in enumerate(picked):
        row = np.zeros(cells.shape[1] * token_step, np.uint8)
        row[: min(query + 1, tokens)] = 1
        row[:tokens][selection.mask(query, 1, tokens)[0]] = 2
        cells[number] = row.reshape(-1, token_step).max(1)
    return cells
