"""Healthy savers with one part exchanged for a faulty one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from milepost import compacting, lease, operations, overview, retention, saver, survey
from milepost.codec import guard, items
from milepost.codec.envelope import Vault
from milepost.codec.guard import Seen
from milepost.codec.values import Serializer
from milepost.dependents import Dependents
from milepost.errors import SchemaMismatch
from milepost.heads import Heads
from milepost.memory import MemoryStore
from milepost.observe import Observers
from milepost.pending import Pending
from milepost.places import BEFORE, Place, place_of
from milepost.retention import Lineage
from milepost.schema import Schema, Schemas
from milepost.schema.schema import Verdict
from milepost.spaces import Spaces
from milepost.store import Loaded, Query, ThreadPage, merge_spans
from milepost.survey import Survey
from milepost.tenants import TenantStore
from milepost.testing import Memory, Subject
from milepost.upgrading import Upgrader

Plant = Callable[[pytest.MonkeyPatch], None]


class _ByIdentity(Seen):
    """Takes a message for unchanged when it is the same object."""

    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Any], eyes: Serializer, after: Any = None) -> None:
        super().__init__(messages, eyes, after)
        self.messages = [*(after.messages if after else ()), *messages]

    def same(self, messages: Sequence[Any], eyes: Serializer) -> bool:
        return len(messages) == len(self.messages) and all(map(lambda a, b: a is b, messages, self.messages))


class _ByEquality(_ByIdentity):
    """Takes a message for unchanged when it equals what it was."""

    __slots__ = ()

    def __init__(self, messages: Sequence[Any], eyes: Serializer, after: Any = None) -> None:
        super().__init__(messages, eyes, after)
        self.messages = copy.deepcopy(self.messages)

    def same(self, messages: Sequence[Any], eyes: Serializer) -> bool:
        return list(messages) == self.messages


class _FieldsByIdentity(Seen):
    """Compares the fields by identity, and does not look below them."""

    __slots__ = ()

    def same(self, messages: Sequence[Any], eyes: Serializer) -> bool:
        boxes = [self.values[at] for at in self.boxed]
        before, self.boxes = self.boxes, eyes.glance(boxes) if self.plain else eyes.encode(boxes)
        try:
            return super().same(messages, eyes)
        finally:
            self.boxes = before


def _guard(patch: pytest.MonkeyPatch, kind: type[Seen]) -> None:
    patch.setattr(items, "Seen", kind)
    patch.setattr(guard, "Seen", kind)
    patch.setattr(guard, "_trace", None)  # else the part in C would do it, and right


def guard_by_identity(patch: pytest.MonkeyPatch) -> None:
    _guard(patch, _ByIdentity)


def guard_by_equality(patch: pytest.MonkeyPatch) -> None:
    _guard(patch, _ByEquality)


def guard_is_shallow(patch: pytest.MonkeyPatch) -> None:
    _guard(patch, _FieldsByIdentity)


def prune_drops_delta_ancestors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lineage, "needed", lambda _, kept, **_options: set(kept))


def prune_drops_items_of_writes(patch: pytest.MonkeyPatch) -> None:
    def live_spans(rows: Any, _: Any) -> Any:
        return merge_spans(span for row in rows for span in row.spans)

    patch.setattr(survey, "live_spans", live_spans)


def retention_forgets_forks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lineage, "_forks", lambda *_: set())


def retention_forgets_who_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lineage, "_waiting", lambda *_: set())


def retention_forgets_what_replays_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "_as_of", lambda *_: set())


def compaction_does_not_wait_for_a_boundary(patch: pytest.MonkeyPatch) -> None:
    async def settled(*_: Any) -> bool:
        return True

    patch.setattr(compacting, "_settled", settled)


def namespaces_alias(patch: pytest.MonkeyPatch) -> None:
    def aliased(config: object) -> Place:
        place = place_of(config)
        return Place(place.thread.replace("|", ":"), place.ns.replace("|", ":"), place.id)

    patch.setattr(saver, "place_of", aliased)


def thread_and_namespace_run_together(patch: pytest.MonkeyPatch) -> None:
    def joined(config: object) -> Place:
        place = place_of(config)
        thread, _, rest = place.thread.partition(":")
        return Place(thread, f"{rest}:{place.ns}" if rest else place.ns, place.id)

    patch.setattr(saver, "place_of", joined)


def metadata_of_the_config_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(saver, "full_metadata", lambda _, metadata: dict(metadata))


def credentials_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("milepost.places.looks_like_credential", lambda _: False)


def put_does_not_wait_for_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pending, "ahead", lambda *_: [])


def failed_writes_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pending, "check", lambda *_: None)


def pending_writes_are_not_upgraded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("milepost.schema.carry.carry_writes", lambda _change, _tasks, writes, *_: list(writes))


def unknown_versions_are_taken_as_they_are(patch: pytest.MonkeyPatch) -> None:
    judge = Schema.judge

    def lenient(self: Schema, stamp: bytes | None, place: Any) -> Verdict:
        try:
            return judge(self, stamp, place)
        except SchemaMismatch:
            return Verdict(self.version)

    patch.setattr(Schema, "judge", lenient)


def an_upgraded_value_lies_where_the_old_one_does(patch: pytest.MonkeyPatch) -> None:
    read = Upgrader.read
    patch.setattr(Upgrader, "read", lambda *given, **more: (read(*given, **more)[0], False))


def a_root_upgrades_its_children(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Schemas, "of", lambda self, ns: self.by_ns.get(ns) or self.by_ns.get(""))


def lost_channels_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("milepost.reading.Reading._drifted", lambda *_: None)


def what_is_rebuilt_beside_is_left_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dependents, "of", lambda *_: set())


def what_an_older_version_needs_goes(patch: pytest.MonkeyPatch) -> None:
    opened = Survey._opened
    patch.setattr(Survey, "_opened", lambda self, row: replace(opened(self, row), stamp=None))


def what_was_rewritten_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    rewrite = MemoryStore.rewrite

    async def forgets(self: Any, thread: str, batch: Any, token: str) -> str | None:
        rows = tuple(row for row in batch.rows if not row.ns.startswith(BEFORE))
        writes = tuple(write for write in batch.writes if not write[0].startswith(BEFORE))
        return await rewrite(self, thread, replace(batch, rows=rows, writes=writes), token)

    patch.setattr(MemoryStore, "rewrite", forgets)


def writers_do_not_hear_of_a_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Spaces, "generation", lambda *given: given[-1])


def a_listener_can_break_a_put(patch: pytest.MonkeyPatch) -> None:
    def emit(self: Any, event: Any) -> None:
        for listener in self.listeners:
            listener(event)

    patch.setattr(Observers, "emit", emit)


def fences_are_not_carried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operations, "fence_for", lambda *_: None)


def the_last_lease_of_a_context_counts(patch: pytest.MonkeyPatch) -> None:
    def fence(of: object, thread: str) -> int | None:
        del of, thread
        held = lease._leases.get()
        return held[-1].fence() if held else None

    patch.setattr(operations, "fence_for", fence)


def a_lost_reply_leaves_a_lease(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Any, store: Any, owner: str) -> None:
        del self, store, owner

    patch.setattr(lease.ThreadLease, "_end", nothing)


def listings_show_all_tenants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TenantStore, "_own", lambda *_: True)
    listings_look_at_all_tenants(patch)


def listings_look_at_all_tenants(patch: pytest.MonkeyPatch) -> None:
    pages, threads = MemoryStore.page, MemoryStore.threads

    async def page(self: MemoryStore, query: Query, *args: Any, **options: Any) -> Loaded:
        return await pages(self, replace(query, prefix=""), *args, **options)

    async def every(self: MemoryStore, after: tuple[str, ...] | None, limit: int, prefix: str = "") -> ThreadPage:
        del prefix
        return await threads(self, after, limit)

    patch.setattr(MemoryStore, "page", page)
    patch.setattr(MemoryStore, "threads", every)


def finished_work_is_abandoned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overview, "work_left", lambda *_: True)


def what_is_sealed_is_anybodys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Vault, "_bound", lambda _, about: about)


def every_root_is_a_first_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Heads, "begun", lambda *_: None)


def planted(plant: Plant, patch: pytest.MonkeyPatch) -> type[Subject]:
    plant(patch)
    return Memory
