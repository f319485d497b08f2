"""W11: what the ledger adds to the call of a tool. No other saver has one: the plain call and the floor stand beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from milepost.ledger import CallRequest, Done, Replay, Run, Succeeded
from milepost.saver import Saver
from milepost.tools import Ledger, keyed

from .agents import message
from .distances import CALLS, Floor
from .goals import number, quantile
from .line_up import MILEPOSTS
from .measure import Bench, Results
from .rivals import Rival
from .summary import shown

THREAD = "agent"


def _request(number: int) -> CallRequest:
    return CallRequest(
        tool="charge",
        arguments={"order": f"order {number}"},
        thread=THREAD,
        message=f"message {number}",
        call="call",
        human="human",
    )


async def w11(calls: int, bench: Bench) -> None:
    """So many calls: each half of them claimed and settled apart, or as a whole; all of them answered; and plain ones."""
    sample, blocking = bench.sample, bench.flavour == "sync"
    receipts = [ToolMessage(message(number).text, tool_call_id="call", id=f"{number}") for number in range(calls)]
    charged: list[str] = []

    @tool
    def charge(order: str) -> Any:
        """Charge a card."""
        charged.append(order)
        return receipts[int(order.rpartition(" ")[2])]

    def plainly(number: int) -> Callable[[], Any]:
        return lambda: charge.invoke({"order": f"order {number}"})

    async with bench.client() as client:
        ledger = Ledger(cast("Saver", client.saver), {"charge": keyed(window="24h")})

        async def claim(number: int) -> Run | Replay:
            return ledger.enter(_request(number)) if blocking else await ledger.aenter(_request(number))

        async def settle(entry: Run, result: Any) -> None:
            if blocking:
                ledger.settle(entry.call, Succeeded(result))
            else:
                await ledger.asettle(entry.call, Succeeded(result))

        async def perform(number: int) -> Done | Replay:
            if blocking:
                return ledger.perform(_request(number), plainly(number))
            return await ledger.aperform(_request(number), plainly(number))

        with bench.costs():
            for at in range(calls // 2):
                entry = await sample.timed("claim", claim(at))
                assert isinstance(entry, Run)
                await sample.timed("settle", settle(entry, plainly(at)()))
            for at in range(calls // 2, calls):
                assert isinstance(await sample.timed("call", perform(at)), Done)
        assert charged == [f"order {at}" for at in range(calls)]
        for at in range(calls):
            found = await sample.timed("found", perform(at))
            assert isinstance(found, Replay)
            assert found.result == receipts[at]
        assert len(charged) == calls, "a finished call was performed again"
        records = ledger.calls(THREAD) if blocking else await ledger.acalls(THREAD)
        assert [(one.state, one.attempt, one.result) for one in records] == [
            ("succeeded", 0, receipt) for receipt in receipts
        ]
        for at in range(calls):
            await sample.timed("plain call", _plain(plainly(at)))
    bench.weigh()
    sample.numbers["bytes a call"] = sample.numbers["bytes"] / calls


async def _plain(call: Callable[[], Any]) -> None:
    call()


def calls_table(results: Results) -> str:
    """Markdown: what the ledger adds to a call, for each of our stores."""
    lines = [f"| | {' | '.join(one.name for one in MILEPOSTS)} |", "|---" * (len(MILEPOSTS) + 1) + "|"]
    for about, cells in _rows(results):
        if any(cells):
            lines.append(f"| {about} | {' | '.join(cells)} |")
    rounds = max((len(found) for (workload, *_), found in results.samples.items() if workload == "W11"), default=0)
    return "\n".join([*(f"Measured on {one}." for one in results.about), f"Rounds: {rounds}.", "", *lines])


def _rows(results: Results) -> Iterator[tuple[str, list[str]]]:
    for floor in CALLS:
        yield f"{floor.about}, times the plain call", [_times(results, ours, floor, "plain call") for ours in MILEPOSTS]
        yield f"{floor.about}, times the floor", [_times(results, ours, floor, None) for ours in MILEPOSTS]
    weights = [results.best("W11", ours.name, "sync", number("bytes a call")) for ours in MILEPOSTS]
    yield "bytes a call, its result of 2 KB among them", ["" if one is None else f"{one:,.0f}" for one in weights]


def _times(results: Results, ours: Rival, floor: Floor, unit: str | None) -> str:
    """The blocking methods, p50."""
    took = results.best(floor.workload, ours.name, "sync", floor.figure)
    if unit is None:
        of = floor.seconds(results, ours)
    else:
        of = results.best(floor.workload, ours.name, "sync", quantile(unit, 0.5))
    return "" if took is None or of is None else shown(took / max(of, 1e-9))
