"""A picture of the summary: for each of our stores, how many times as much others take, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from .line_up import EVERYBODY, MILEPOSTS
from .measure import Flavour, Results
from .rivals import Rival
from .summary import HEADLINES, peers, ratio, shown

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 235, 20, 22, 46
_SHAPES = ("circle", "square", "diamond")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
"""Told apart by people who see few colours, too; shapes help."""
_PEERS = tuple(one for one in EVERYBODY if not one.ours)


def plot(results: Results, flavour: Flavour = "sync") -> str:
    """SVG. A dot right of the line at 1 is a saver that takes more than ours of the same store."""
    dots = {ours: list(_dots(results, ours, flavour)) for ours in MILEPOSTS}
    ratios = [value for rows in dots.values() for _, found in rows for _, value in found]
    low = min([-1, *(math.floor(math.log10(value)) for value in ratios)])
    high = max([2, *(math.ceil(math.log10(value)) for value in ratios)])
    scale = (_WIDTH - _LEFT - _RIGHT) / (high - low)
    lines: list[str] = []
    y = _TOP
    for ours, rows in dots.items():
        if rows:
            lines += _panel(ours, rows, y, (low, high), scale)
            y += _ROW * len(rows) + 74
    return "\n".join([*_head(y), *lines, "</svg>", ""])


def _dots(results: Results, ours: Rival, flavour: Flavour) -> Iterator[tuple[str, list[tuple[Rival, float]]]]:
    for headline in HEADLINES:
        if headline.plotted:
            # A saver that keeps nothing would stretch the scale.
            found = [(peer, ratio(results, headline, ours, peer, flavour)) for peer in peers(ours) if peer.durable]
            known = [(peer, value) for peer, value in found if value is not None and value > 0]
            if known:
                yield headline.about, known


def _head(height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#222">'
    )
    yield "<title>How many times as much time, or bytes, other savers take</title>"
    yield f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#fff"/>'
    yield (
        f'<text x="{_LEFT}" y="20" font-weight="bold">How many times as much others take '
        "(right of 1: more than Milepost)</text>"
    )


def _panel(
    ours: Rival, rows: list[tuple[str, list[tuple[Rival, float]]]], top: int, span: tuple[int, int], scale: float
) -> Iterator[str]:
    low, high = span
    yield f'<text x="12" y="{top + 8}" font-weight="bold">{escape(ours.name.capitalize())}</text>'
    yield from _legend([one for one in _PEERS if any(one == peer for _, found in rows for peer, _ in found)], top + 8)
    top += 22
    bottom = top + _ROW * len(rows)
    for power in range(low, high + 1):
        x = _LEFT + (power - low) * scale
        stroke = 'stroke="#222" stroke-width="1.5"' if power == 0 else 'stroke="#ddd"'
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" {stroke}/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle" fill="#555">{10.0**power:,g}</text>'
    for number, (about, found) in enumerate(rows):
        y = top + _ROW * number + _ROW // 2
        yield f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(about)}</text>'
        for peer, value in found:
            x = _LEFT + (math.log10(value) - low) * scale
            yield _mark(peer, x, y, f"{peer.name}, {about}: {shown(value)}")


def _legend(found: list[Rival], y: int) -> Iterator[str]:
    x = _LEFT
    for peer in found:
        yield _mark(peer, x, y - 4, peer.name)
        yield f'<text x="{x + 9}" y="{y}">{escape(peer.name)}</text>'
        x += 24 + 7 * len(peer.name)


def _mark(peer: Rival, x: float, y: int, title: str) -> str:
    number = _PEERS.index(peer)
    turn = f' transform="rotate(45 {x:.1f} {y})"' if _SHAPES[number % 3] == "diamond" else ""
    look = f'fill="{_COLOURS[number % len(_COLOURS)]}" fill-opacity="0.85"{turn}'
    said = f"<title>{escape(title)}</title>"
    if _SHAPES[number % 3] == "circle":
        return f'<circle cx="{x:.1f}" cy="{y}" r="5" {look}>{said}</circle>'
    return f'<rect x="{x - 4.5:.1f}" y="{y - 4.5}" width="9" height="9" {look}>{said}</rect>'
