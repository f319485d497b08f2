"""What a run has stored whose thread was deleted under it."""

from __future__ import annotations

from collections.abc import Collection

from milepost import maintenance
from milepost.codec import Codec
from milepost.errors import MilepostError
from milepost.observe import hushed, log, thread_hash
from milepost.runs import Spot
from milepost.shared import Shared
from milepost.sides import Side


async def disown_late(
    shared: Shared,
    codec: Codec,
    side: Side,
    thread: str,
    spots: Collection[Spot],
    *,
    rows: bool = True,
    wait: bool = True,
) -> None:
    """Remove what LangGraph has put ahead of checkpoints that will not be there, and was accepted. Without `rows`, only
    pending writes; with `wait`, those too that are still under way."""
    pending, spaces = shared.pending, shared.spaces
    try:
        for ns, id in spots:
            if wait and (ahead := pending.ahead((thread, ns, id))):
                await side.wait(ahead)
        places = {(ns if spaces is None else spaces.known(thread, ns), id) for ns, id in spots}
        await maintenance.disown(side.store, codec, thread, places, rows=rows)
    except MilepostError as exc:
        log.warning(
            "thread %s: late writes of a deleted run may be left: %s", thread_hash(thread), hushed(exc.message, thread)
        )
