"""Records of the ledger in a log: what they cost, and that nothing that is done to a log loses one."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import milepost_files
import pytest
from files.kit import log_of
from milepost.callstore import CallQuery
from milepost.codec.envelope import unwrap
from milepost.flavour import run
from milepost.ledger import CallRequest, Ledger, LedgerError, Run, Succeeded, idempotent, unsafe
from milepost.saver import Saver
from milepost.testing import at, checkpoint
from milepost_files import scan
from milepost_files.index import Index


def request(number: int, **more: Any) -> CallRequest:
    return CallRequest(tool="t", arguments={"n": number}, thread="t", message="m", call=f"c{number}", **more)


def ledger_of(path: Path, **options: Any) -> tuple[Ledger, Saver]:
    saver = Saver(milepost_files.open_backend(path, durability="os"))
    return Ledger(saver, tools={"t": unsafe(max_duration=0)}, lease=0, wait_timeout=0, skew=0, **options), saver


def frames_of(path: Path) -> int:
    """How many frames the only log has."""
    with log_of(path).open("rb") as file:
        size = log_of(path).stat().st_size
        index = scan.begin(file.fileno(), size)
        assert index is not None
        scan.advance(file.fileno(), index, size)
        return index.frames


def states(ledger: Ledger) -> list[tuple[str, Any, int]]:
    return [(record.state, record.arguments, len(record.trail)) for record in ledger.calls("t")]


def test_two_appends(tmp_path: Path) -> None:
    ledger, saver = ledger_of(tmp_path)
    entry = ledger.enter(request(0))
    assert isinstance(entry, Run)
    claimed = frames_of(tmp_path)
    ledger.settle(entry.call, Succeeded("x" * 1000))
    assert frames_of(tmp_path) == claimed + 1
    ledger.perform(request(1), lambda: None)
    assert frames_of(tmp_path) == claimed + 3
    ledger.perform(request(1), lambda: None)
    assert frames_of(tmp_path) == claimed + 3, "a record that is found is not written again"
    saver.close()


def test_a_settlement_does_not_store_the_call_again(tmp_path: Path) -> None:
    ledger, saver = ledger_of(tmp_path)
    entry = ledger.enter(CallRequest(tool="t", arguments={"text": "x" * 4000}, thread="t", message="m", call="c"))
    assert isinstance(entry, Run)
    size = log_of(tmp_path).stat().st_size
    ledger.settle(entry.call, Succeeded("y"))
    assert log_of(tmp_path).stat().st_size - size < 600
    saver.close()


def fill(path: Path) -> tuple[Ledger, Saver]:
    """Calls in all kinds of states, one of them adopted."""
    ledger, saver = ledger_of(path)
    saver.put(at("t"), checkpoint("0001", {"n": 1}), {}, {"n": 1})
    for number in range(60):
        ledger.perform(request(number), functools.partial("result {}".format, number))
    for number in range(60, 63):
        ledger.enter(request(number))
    adopting = Ledger(saver, tools={"t": idempotent(max_duration=0)}, lease=0, wait_timeout=0, skew=0)
    adopting.perform(request(90, human="h"), lambda: "first")
    again = CallRequest(tool="t", arguments={"n": 90}, thread="t", message="m2", call="d", human="h")
    assert adopting.perform(again, lambda: "second").result == "first"
    return ledger, saver


def test_a_snapshot_says_what_the_log_says(tmp_path: Path) -> None:
    _, saver = fill(tmp_path)
    for number in range(300):  # enough for a snapshot
        saver.put_writes(at("t", "", "0001"), [("x", number)], f"task {number}")
    saver.close()
    thawed = Index.thaw(unwrap(log_of(tmp_path).with_suffix(".idx").read_bytes()))
    assert thawed is not None
    assert len(thawed.calls.spots) == 64
    with log_of(tmp_path).open("rb") as file:
        read = scan.begin(file.fileno(), thawed.end)
        assert read is not None
        scan.advance(file.fileno(), read, thawed.end)
    assert read.freeze() == thawed.freeze()
    assert (read.calls.live, read.calls.matches, read.calls.aliases) == (
        thawed.calls.live,
        thawed.calls.matches,
        thawed.calls.aliases,
    )


@pytest.mark.parametrize("how", ["prune", "force"])
def test_a_log_that_is_written_anew_keeps_them(tmp_path: Path, how: str) -> None:
    ledger, saver = fill(tmp_path)
    before = states(ledger)
    identity = log_of(tmp_path).stat().st_ino
    if how == "prune":
        for number in range(2, 40):
            made = checkpoint(f"{number:04}", {"text": f"{number} " * 3000})
            saver.put(at("t", "", f"{number - 1:04}"), made, {}, {"text": number})
        saver.prune(["t"])
    else:
        saver.delete_thread("t", force=True)
        before = [entry for entry in before if entry[0] == "started"]
        assert len(before) == 3
    assert log_of(tmp_path).stat().st_ino != identity
    assert states(ledger) == before
    saver.close()
    ledger, saver = ledger_of(tmp_path)
    assert states(ledger) == before
    if how == "prune":
        assert ledger.perform(request(7), lambda: "again").result == "result 7"
        key = ledger.core.plan(CallRequest(tool="t", arguments={"n": 90}, thread="t", message="m2", call="d")).key
        store = run(ledger.core.store(ledger.core.blocking()))
        assert len(run(store.calls(CallQuery("t", keys=(key,)), None, 9)).rows) == 1, "a further key is lost"
    saver.close()


def test_a_lost_frame_forbids_what_may_be_recorded(tmp_path: Path) -> None:
    ledger, saver = ledger_of(tmp_path)
    for number in range(3):
        ledger.perform(request(number), lambda: "done")
    saver.close()
    log = log_of(tmp_path)
    data = bytearray(log.read_bytes())
    # The header of the second claim's frame: what it held cannot be told any more.
    place = data.index(b"MPF1", data.index(b"MPF1", data.index(b"MPF1", 4) + 4) + 4)
    data[place + 20] ^= 0xFF
    log.write_bytes(data)
    ledger, saver = ledger_of(tmp_path)
    ran: list[int] = []
    for number in range(4):
        with contextlib.suppress(LedgerError):
            assert ledger.perform(request(number), functools.partial(ran.append, number)).result == "done"
    assert ran == []
    with pytest.raises(LedgerError, match="lost"):
        ledger.perform(request(3), functools.partial(ran.append, 3))
    saver.close()


def test_global_keys_are_spread_over_logs_of_their_own(tmp_path: Path) -> None:
    ledger, saver = ledger_of(tmp_path)
    for number in range(20):
        ledger.once(f"invoice-{number}", str, number, scope="global")
    assert len(list(tmp_path.glob("threads/*/*.log"))) > 10
    assert sorted(record.key for record in ledger.calls("")) == sorted(f"invoice-{number}" for number in range(20))
    assert list(saver.threads()) == []
    saver.close()
