"""Rollback of calls that were performed more than once: what counts is where, and when, the effect was made that stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from milepost.callstore import CallQuery
from milepost.ledger import (
    CallRequest,
    Failed,
    InDoubt,
    Irreversible,
    LedgerError,
    Suspended,
    ToolPolicy,
    Verdict,
    applied,
    idempotent,
    keyed,
    not_applied,
    unsafe,
)
from milepost.ledger.request import Outcome
from milepost.testing.chain import Chain
from milepost.testing.faults import Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.workers import Worker, quick, wants

LEFT, RIGHT = "left", "right"
"""Two checkpoints on the same one, "trunk"."""


async def _forked(lab: Lab, face: Face | None = None) -> None:
    chain = Chain(face or lab.saver)
    await chain.put({"n": 1}, id="trunk")
    await chain.put({"n": 2}, id=LEFT)
    await chain.put({"n": 3}, id=RIGHT, parent="trunk")


def _at(place: str, **more: Any) -> CallRequest:
    """The request of a task that started from a checkpoint."""
    return wants(checkpoints=(("", place),), **more)


def _undoable(undone: list[Any], policy: ToolPolicy) -> ToolPolicy:
    return replace(policy, compensate=lambda record, _: undone.append(record.arguments))


class RollbacksOverBranches(Behaviours):
    """An effect is undone that was made after the checkpoint, wherever its call was first asked for."""

    async def _found(self, worker: Worker) -> list[str]:
        """Which of the branches a rollback finds the call on."""
        found = []
        for place in (LEFT, RIGHT):
            plan = await worker.rollback(place, dry_run=True)
            found += [place for undo in plan.calls if undo.action != "nothing"]
        return found

    @needs("ledger")
    async def test_performed_anew_on_another_branch(self, lab: Lab) -> None:
        undone: list[Any] = []
        worker = Worker(lab, tools={"charge": _undoable(undone, quick(unsafe))})
        await _forked(lab)
        await worker.do(_at(LEFT))
        await worker.rollback(LEFT)
        await worker.do(_at(RIGHT))
        assert await self._found(worker) == [RIGHT]
        await worker.rollback(RIGHT)
        assert ("compensated", 1, 0) in await worker.states()
        assert len(undone) == 2

    @needs("ledger")
    async def test_tried_again_on_another_branch(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        await _forked(lab)
        await _tried(worker, _at(LEFT), "failed")
        assert await self._found(worker) == []
        await worker.do(_at(RIGHT))
        assert await self._found(worker) == [RIGHT]
        with pytest.raises(Irreversible):
            await worker.rollback(RIGHT)

    @needs("ledger")
    async def test_retried_in_doubt_on_another_branch(self, lab: Lab) -> None:
        worker = Worker(lab, lease=0, tools={"charge": quick(keyed, window="1h")})
        await _forked(lab)
        for place in (LEFT, LEFT, RIGHT):
            await worker.run(_at(place))
        await worker.do(_at(RIGHT))
        # Which attempt the API has performed, nobody knows.
        assert await self._found(worker) == [LEFT, RIGHT]

    @needs("ledger")
    @pytest.mark.parametrize("verdict", [applied(), not_applied()], ids=lambda verdict: verdict.kind)
    async def test_what_was_found_out_about_an_attempt(self, lab: Lab, verdict: Verdict) -> None:
        worker = Worker(lab, lease=0, tools={"charge": quick(unsafe)})
        await _forked(lab)
        await worker.run(_at(LEFT))
        await worker.do(_at(RIGHT, answer=verdict))
        assert await self._found(worker) == [LEFT if verdict.kind == "applied" else RIGHT]

    @needs("ledger")
    async def test_resumed_on_another_branch(self, lab: Lab) -> None:
        worker = Worker(lab)
        await _forked(lab)
        await worker.settle(await worker.run(_at(LEFT)), Suspended())
        call = await worker.run(_at(RIGHT))
        await worker.step(call, "charge", lambda: "paid")
        await worker.settle(call, Suspended())
        assert await self._found(worker) == [RIGHT]
        await worker.do(_at(LEFT))
        # The effect of the step was made on the one, the call's own on the other.
        assert await self._found(worker) == [LEFT, RIGHT]

    @needs("ledger")
    async def test_an_effect_within_a_call_that_failed(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        await _forked(lab)
        call = await worker.run(_at(LEFT))
        await worker.step(call, "hold", lambda: "held")
        await worker.settle(call, Failed("?"))
        assert await self._found(worker) == [LEFT]

    @needs("ledger")
    async def test_adopted_on_another_branch(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(idempotent)})
        await _forked(lab)
        await worker.do(_at(LEFT, human="h"), "first")
        assert await worker.do(_at(RIGHT, human="h", message="m2"), "second") == "first"
        assert await self._found(worker) == [LEFT, RIGHT]

    @needs("ledger")
    async def test_bound_to_other_arguments_on_another_branch(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        await _forked(lab)
        await _tried(worker, _at(LEFT, key="k"), "failed")
        await worker.do(_at(RIGHT, key="k", arguments={"amount": 6}))
        assert await self._found(worker) == [RIGHT]

    @needs("ledger")
    async def test_claimed_on_another_branch_where_nobody_learned_of_it(self, lab: Lab) -> None:
        plan = Plan()
        face = lab.faulty(plan)
        worker = Worker(lab, face)
        await _forked(lab, face)
        plan.arm("after")
        with pytest.raises(LedgerError):
            await worker.do(_at(LEFT))
        plan.disarm()
        await worker.do(_at(RIGHT))
        assert await self._found(worker) == [RIGHT]
        assert len(worker.performed) == 1

    @needs("ledger")
    async def test_of_an_earlier_release(self, lab: Lab) -> None:
        """Records then kept the checkpoints of the first attempt: of a later one it is only known when it was."""
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        await _forked(lab)
        await _tried(worker, _at(LEFT), "failed")
        await worker.do(_at(RIGHT))
        store, book = await worker.store(), worker.ledger.core.book
        (row,) = (await store.calls(CallQuery("thread"), None, 1)).rows
        info = replace(book.info(row), checkpoints=_at(LEFT).checkpoints, claim=0)
        call = book.seal_info("thread", row.key, info)
        as_then = book.change("thread", row.key, row.mark, row.state, outcome={"result": "paid"}, call=call)
        assert (await store.settle("thread", as_then)).done
        assert await self._found(worker) == [LEFT, RIGHT]
        await Chain(lab.saver).put({"n": 4}, id="later", parent=RIGHT)
        assert (await worker.rollback("later", dry_run=True)).calls == ()

    @needs("ledger")
    @pytest.mark.parametrize("first", ["failed", "asked", "in doubt", "undone", "lost"])
    async def test_the_order_is_that_of_the_effects(self, lab: Lab, first: str) -> None:
        """A call that was begun before another one, and performed after it, is undone before it."""
        undone: list[Any] = []
        policy = _undoable(undone, quick(unsafe))
        worker = Worker(lab, lease=0, tools={"charge": policy}, on_unsettled="ignore")
        await Chain(lab.saver).put({"n": 1}, id="trunk")
        one, other = (_at("trunk", call=name, arguments={"of": name}) for name in ("one", "other"))
        await _tried(worker, one, first)
        undone.clear()
        await worker.do(other)
        await worker.do(replace(one, answer=not_applied() if first in ("in doubt", "lost") else None))
        await worker.rollback("trunk")
        assert undone == [{"of": "one"}, {"of": "other"}]

    @needs("ledger")
    @pytest.mark.parametrize("then", ["the worker crashes", "it raises"])
    async def test_the_order_of_effects_that_others_have_told_of(self, lab: Lab, then: str) -> None:
        undone: list[Any] = []
        policy = _undoable(undone, quick(unsafe))
        worker = Worker(lab, lease=0, tools={"charge": policy}, on_unsettled="ignore")
        await Chain(lab.saver).put({"n": 1}, id="trunk")
        requests = [_at("trunk", call=name, arguments={"of": name}) for name in ("one", "other", "last")]
        await _tried(worker, requests[0], "failed")
        await worker.do(requests[1])
        call = await worker.run(requests[0])
        if then == "it raises":
            await worker.settle(call, InDoubt("?"))
        await worker.do(requests[2])
        await worker.resolve(call.record_key, applied("paid"))
        await worker.rollback("trunk")
        assert undone == [{"of": "last"}, {"of": "one"}, {"of": "other"}]


async def _tried(worker: Worker, request: CallRequest, how: str) -> None:
    """An attempt that has changed nothing, or nothing that is left."""
    if how == "undone":
        await worker.do(request)
        await worker.rollback("trunk")
        return
    call = await worker.run(request)
    if how != "lost":
        outcomes: dict[str, Outcome] = {"failed": Failed("?"), "asked": Suspended(), "in doubt": InDoubt("?")}
        await worker.settle(call, outcomes[how])
