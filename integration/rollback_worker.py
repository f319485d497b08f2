"""One life of a worker that rolls a thread back, until it has, or is killed."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from typing import Any, cast

import milepost
from driving import place, thread
from ledger_points import Points, WatchedBackend
from ledger_worker import EFFECT, LEASE, Life, Word
from milepost.saver import Saver
from milepost.store import Backend
from milepost.tools import CallRecord, Ledger, current_call, keyed
from milepost_inspector.demo import world


def roll_back(life: Life, told: Connection) -> None:
    """Undo everything, whoever holds the thread: whose turn it is is dead."""
    points = Points(life.death)

    def refund(record: CallRecord, _: Any) -> None:
        points.reach("before effect")
        name, key = f"{life.thread}/undo {record.arguments['order']}", current_call().key
        world.ask(life.world, {"op": "effect", "id": name, "key": key, "run": life.run, "payload": {}})
        points.reach("after effect")

    async def arefund(record: CallRecord, result: Any) -> None:
        await asyncio.to_thread(refund, record, result)

    blocking = life.cell.flavour == "blocking"
    policy = keyed(window="24h", max_duration=EFFECT, compensate=refund if blocking else arefund)
    with milepost.connect(life.url) as opened:
        saver = Saver(cast("Backend", WatchedBackend(opened.backend, points)))
        *_, first = saver.list(thread(life.thread))
        to = place(first.config)["checkpoint_id"]
        ledger = Ledger(saver, {"charge": policy}, lease=LEASE, skew=0.05, wait_timeout=20, owner=str(life.run))
        if blocking:
            done = ledger.rollback(life.thread, to=to, steal=True)
        else:
            done = asyncio.run(ledger.arollback(life.thread, to=to, steal=True))
    assert done.fork is not None
    told.send(Word(said=place(done.fork)["checkpoint_id"], seen=tuple(points.seen.items())))
