"""How far each workload is from what the machine allows: encoding once, one round trip, one sync of the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .floors import COMMIT, DUMP, FLOOR, LOAD, PING, SELECT, SYNC
from .goals import Figure, number, quantile
from .line_up import MILEPOSTS
from .measure import Results
from .rivals import Rival, Store

_STORED: Mapping[Store, str] = {"files": SYNC, "postgres": COMMIT, "redis": PING}
"""What an answered write cannot do without."""
_ASKED: Mapping[Store, str | None] = {"files": None, "postgres": SELECT, "redis": PING}
"""What a read cannot do without."""
_W1 = "W1 N={}".format


@dataclass(frozen=True)
class Floor:
    """The least that a figure can be, as a sum of what the machine takes."""

    about: str
    workload: str
    figure: Figure
    encoded: float = 0
    """Messages."""
    decoded: float = 0
    stored: float = 0
    """Answered writes: a round trip, and a sync of the disk where the store waits for it."""
    asked: float = 0
    beside: Figure | None = None
    """What is no saver's doing, of the same sample."""

    def seconds(self, results: Results, ours: Rival) -> float | None:
        """None where something was not measured."""
        total = 0.0
        parts = (
            (self.encoded, DUMP),
            (self.decoded, LOAD),
            (self.stored, _STORED[ours.store]),
            (self.asked, _ASKED[ours.store]),
        )
        for times, name in parts:
            if times and name is not None:
                least = results.best(self.workload, FLOOR, "sync", quantile(name, 0.5))
                if least is None:
                    return None
                total += times * least
        if self.beside is not None:
            least = results.best(self.workload, ours.name, "sync", self.beside)
            if least is None:
                return None
            total += least
        return total


_OF_300 = 300 - 4.5
"""How many messages each of the latest ten lists has in the mean."""
CALLS = (
    Floor("a call, claimed and settled", "W11", quantile("call", 0.5), 1, 0, 2, 0, quantile("plain call", 0.5)),
    Floor("its claim alone", "W11", quantile("claim", 0.5), stored=1),
    Floor("its settlement alone", "W11", quantile("settle", 0.5), encoded=1, stored=1),
    Floor("a call answered from its record", "W11", quantile("found", 0.5), decoded=1, asked=1),
)
FLOORS = (
    Floor("W1, put, 100 steps", _W1(100), quantile("put", 0.5), encoded=1, stored=1),
    Floor("W1, put, 300 steps", _W1(300), quantile("put", 0.5), encoded=1, stored=1),
    Floor("W1, put, 1,000 steps", _W1(1000), quantile("put", 0.5), encoded=1, stored=1),
    Floor("W1, put, last tenth of 1,000", _W1(1000), quantile("last put", 0.5), encoded=1, stored=1),
    Floor("W2, get, 1,000 messages", _W1(1000), quantile("get", 0.5), decoded=1000, asked=1),
    Floor("W3, list 10, 300 messages", _W1(300), quantile("list 10", 0.5), decoded=10 * _OF_300, asked=1),
    Floor("W4, put and its writes, 1 worker", "W4 x1", number("seconds per put"), encoded=2, stored=2),
    Floor("W4, the same, 32 workers", "W4 x32", number("seconds per put"), encoded=2, stored=2 / 32),
    Floor("W5, put", "W5", quantile("put", 0.5), stored=1),
    Floor("W6, a run of 50 steps", "W6", quantile("run", 0.5), 50, 0, 52, 1, quantile("run without", 0.5)),
    Floor("W7, 100 parallel writes", "W7", quantile("fan", 0.5), encoded=100, stored=1),
    Floor("W8, prune 10,000 steps", "W8", quantile("prune", 0.5), stored=1),
    Floor("W8, delete 10,000 steps", "W8", quantile("delete", 0.5), stored=1),
    Floor("W9, history of 1,000 updates", "W9", quantile("history", 0.5), decoded=1000, asked=1),
    Floor("W10, put, a file of 20 KB changed", "W10", quantile("put", 0.5), encoded=10, stored=1),
    *(replace(floor, about=f"W11, {floor.about}") for floor in CALLS),
)


def floors_table(results: Results) -> str:
    """Markdown: what was measured as a multiple of the floor, and what the floor consists of."""
    lines = [
        f"| | {' | '.join(one.name for one in MILEPOSTS)} | the floor |",
        "|---" * (len(MILEPOSTS) + 2) + "|",
    ]
    for floor in FLOORS:
        cells = []
        for ours in MILEPOSTS:
            least = floor.seconds(results, ours)
            found = results.best(floor.workload, ours.name, "sync", floor.figure)
            cells.append("" if least is None or found is None else f"{found / max(least, 1e-9):,.1f}")
        if any(cells):
            lines.append(f"| {floor.about} | {' | '.join(cells)} | {_described(floor)} |")
    return "\n".join(lines)


def _described(floor: Floor) -> str:
    parts = [
        (floor.encoded, "messages encoded"),
        (floor.decoded, "messages decoded"),
        (floor.stored, "answered writes"),
        (floor.asked, "answered reads"),
    ]
    said = [f"{times:,.3g} {what}" if times < 1000 else f"{times:,.0f} {what}" for times, what in parts if times]
    return ", ".join(said) + (", what is no saver's" if floor.beside else "")
