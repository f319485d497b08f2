"""Worker processes that want one thread: see test_leases.py."""

from __future__ import annotations

from multiprocessing.connection import Connection

import milepost
from milepost.errors import LeaseLost, MilepostError
from milepost.testing import at, checkpoint

TTL = 0.4
"""Seconds. The tests wait for what happens when they are over, and not for how long that takes."""


def zombie(url: str, link: Connection) -> None:
    """Takes the lease, and writes when it is told to, whatever happened meanwhile."""
    with milepost.connect(url) as saver:
        saver.put(at("t"), checkpoint("0001", {"m": ["old"]}), {}, {"m": 1})
        with saver.lease("t", ttl=TTL) as lease:
            link.send((lease.owner, lease.fence))
            link.recv()
            for write in (
                lambda: saver.put(at("t", "", "0001"), checkpoint("0009", {"m": ["zombie"]}), {}, {"m": 1}),
                lambda: saver.put_writes(at("t", "", "0001"), [("m", "zombie")], "task"),
                lease.check,
            ):
                try:
                    write()
                except MilepostError as exc:
                    link.send((type(exc).__name__, exc.facts.get("found")))
                else:
                    link.send(("stored", None))


def racer(url: str, number: int, link: Connection) -> None:
    """Takes the lease again and again, and adds to the thread in a few steps each time."""
    with milepost.connect(url) as saver:
        while True:
            try:
                with saver.lease("t", ttl=TTL, wait=None) as lease:
                    for _ in range(3):
                        found = saver.get_tuple(at("t"))
                        items = [*(found.checkpoint["channel_values"]["m"] if found else ()), (lease.fence, number)]
                        made = checkpoint(f"{len(items):06}-{number}-{lease.fence}", {"m": items})
                        saver.put(found.config if found else at("t"), made, {}, {"m": len(items)})
                        link.send(("stored", made["id"], lease.fence))
            except LeaseLost:
                link.send(("lost", "", 0))
