"""Schemas: a state with its version, and the ways that lead to it from other versions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, cast

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.errors import InvalidConfig, SchemaMismatch
from milepost.schema.carry import carry, carry_update, carry_writes, gathered
from milepost.schema.changes import Change, ClassName, NotDeclared, check_renames, names, text
from milepost.schema.image import RESUME, Image, Write
from milepost.schema.shape import Drift, Shape, deltas_of, drift, has_name, kept_type
from milepost.schema.stamps import Stamp, decode, encode
from milepost.schema.tasks import Tasks
from milepost.schema.waiting import check_leads, nodes_of, unknown_node

OnDrift = Literal["warn", "refuse"]
Classes = Mapping[ClassName, type | ClassName]

REFUSED: Final = "cannot be upgraded"
"""What is said of a checkpoint of which a change cannot be carried out."""
_NEWEST: Final = 2**63 - 1
_KNOWN: Final = 1024
"""Most different stamps whose verdicts are kept."""


@dataclass(frozen=True, init=False)
class Step:
    """From one version to another: `changes`, applied in order.

    Each change speaks of the names that the changes before it have left.
    """

    source: int
    target: int
    changes: tuple[Change, ...]

    def __init__(self, source: int, target: int, *changes: Change) -> None:
        if any(not isinstance(change, Change) for change in changes):
            raise InvalidConfig(
                f"Step({source}, {target}, …) holds something that is no change: use rename_channel, map_state, … of "
                "milepost.schema",
                what="changes",
            )
        check_renames(changes)
        object.__setattr__(self, "source", _version(source, "source"))
        object.__setattr__(self, "target", _version(target, "target"))
        object.__setattr__(self, "changes", changes)


@dataclass(frozen=True, slots=True)
class Where:
    """Whose stamp is looked at. For messages."""

    thread: str
    ns: str
    id: str

    def __str__(self) -> str:
        return f"checkpoint {self.id!r} of thread {self.thread!r}" + (f", namespace {self.ns!r}" if self.ns else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a stamp means to a schema."""

    version: int
    steps: tuple[Step, ...] = ()
    """What leads to the schema's own version. Empty: it is to be taken as it is."""
    table: bytes | None = None
    """Of the stored shape, where it is not the schema's own although the version is."""


class Schema:
    """A state with a version, and how checkpoints of other versions become ones of it.

    Args:
        state: the graph's state: a TypedDict, a dataclass or a Pydantic model. Further classes whose keys are channels
            of the same graph (input, output and private state) may follow in a tuple.
        version: of this shape, from 1 on. It goes up with each change of the state's keys, types or nodes' names.
        upgrades: `Step`s from older versions. They are chained; the fewest steps are taken.
        downgrades: `Step`s from newer versions, for a release that has to read what a newer one has written.
        name: what the schema is called in the store; by default the name of the state's class.
        formerly: names that it had before.
        readable_from: the oldest version whose code may read what is stored under this version as it is.
        unstamped: the version that checkpoints without a stamp are of: those from before schemas were used. By default
            they are refused.
        drift: what to do about a checkpoint of this version with another shape: "warn" (log and event), or "refuse".
        nodes: the names of the graph's nodes, such as `StateGraph.nodes`. What waits for any other one is refused.

    Raises `InvalidConfig` for what cannot be right.
    """

    _rest: tuple[Step, ...] = ()
    """What is done after all steps, of one that is gone in part."""

    def __init__(
        self,
        state: type | tuple[type, ...],
        *,
        version: int,
        upgrades: Iterable[Step] = (),
        downgrades: Iterable[Step] = (),
        name: str | None = None,
        formerly: Iterable[str] = (),
        readable_from: int | None = None,
        unstamped: int | None = None,
        drift: OnDrift = "warn",
        nodes: Iterable[str] | None = None,
    ) -> None:
        states = state if isinstance(state, tuple) else (state,)
        if not states:
            raise InvalidConfig("a schema needs a state", what="state", value="()")
        self.states: Final = states
        self.shape: Final = Shape.join([Shape.of(one) for one in states])
        self.version: Final = _version(version, "version")
        self.name: Final = text(states[0].__name__ if name is None else name, "name")
        self.names: Final = frozenset((self.name, *names(formerly, "formerly")))
        self.upgrades: Final = _steps(upgrades, up=True)
        self.downgrades: Final = _steps(downgrades, up=False)
        self.readable_from: Final = self.version if readable_from is None else _version(readable_from, "readable_from")
        self.unstamped: Final = None if unstamped is None else _version(unstamped, "unstamped")
        if drift not in ("warn", "refuse"):
            raise InvalidConfig(f"drift={drift!r} is neither 'warn' nor 'refuse'", what="drift", value=repr(drift))
        self.drift: Final[OnDrift] = drift
        if self.readable_from > self.version:
            raise InvalidConfig(f"readable_from={readable_from} is newer than version {version}", what="readable_from")
        self._check_ways()
        self.nodes: Final = None if nodes is None else nodes_of(nodes)
        if self.nodes is not None:
            check_leads(map(self._changes_from, (*self.upgrades, *self.downgrades)), self.nodes)
        self._stamp = Stamp(self.name, self.version, self.readable_from, self.shape.fingerprint, self.shape.table)
        self.stamp, self.write_stamp = encode(self._stamp)
        self._verdicts: dict[bytes | None, Verdict] = {}
        self._midways: dict[tuple[Step, int], Midway] = {}

    def stamps(self, below: Mapping[str, bytes]) -> tuple[bytes, bytes]:
        """Those of a checkpoint and of a pending write that send something to subgraphs: see `Stamp.below`."""
        return encode(self._stamp._replace(below=below)) if below else (self.stamp, self.write_stamp)

    def __repr__(self) -> str:
        return f"Schema({self.name}, version={self.version})"

    def _check_ways(self) -> None:
        """Each step must lead here: where one is missing, that would be found out when somebody reads."""
        for what, steps in (("upgrades", self.upgrades), ("downgrades", self.downgrades)):
            for step in steps:
                beyond = (step.target > self.version) if what == "upgrades" else (step.target < self.version)
                if beyond or self.path(step.target) is None:
                    raise InvalidConfig(
                        f"{what} holds a step from {step.source} to {step.target}, and none leads from there to version "
                        f"{self.version}",
                        what=what,
                    )
        if self.unstamped is not None and self.unstamped > self.version and self.path(self.unstamped) is None:
            raise InvalidConfig(
                f"unstamped={self.unstamped} is newer than version {self.version}, and no downgrades lead from there",
                what="unstamped",
            )

    def _changes_from(self, step: Step) -> list[Change]:
        """Those of `step`, and of what leads on from there."""
        return [change for one in (step, *(self.path(step.target) or ())) for change in one.changes]

    @cached_property
    def node_chains(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """The nodes that were renamed, as (old, new), from the version that is farthest to the nearest: those of the
        upgrades, and those of the downgrades."""
        up = sorted(self.upgrades, key=lambda step: (step.source, step.target))
        down = sorted(self.downgrades, key=lambda step: (-step.source, -step.target))
        return tuple(chain for steps in (up, down) if (chain := node_renames(steps)))

    def renames_since(self, version: int) -> tuple[tuple[str, str], ...]:
        """The nodes that were renamed since `version`, as (old, new), in order."""
        return node_renames(self.path(version) or ())

    def renames_of_calls(self, was: Sequence[int], version: int) -> tuple[tuple[str, str], ...]:
        """The nodes that were renamed since a checkpoint of `version`, which was of the versions `was` before a migration,
        may first have made calls, as (old, new)."""
        return next((node_renames(way) for each in (*was, version) if (way := self.path(each)) is not None), ())

    @cached_property
    def renamed(self) -> frozenset[str]:
        """Every name that a renamed node has or had."""
        return frozenset(name for chain in self.node_chains for pair in chain for name in pair)

    @cached_property
    def passes_names_on(self) -> bool:
        """Whether any node has a name that another one had before."""
        for chain in self.node_chains:
            now: dict[str, str] = {}
            for old, new in chain:
                now = {first: new if name == old else name for first, name in now.items()}
                if old not in now and old not in now.values():
                    now[old] = new
            if any(now.get(name, name) != name for name in now.values()):
                return True
        return False

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """Tasks that renamed entrypoints call, by every name that they had."""
        steps = (*self.upgrades, *self.downgrades)
        names = {name for step in steps for change in step.changes for name in change.calls}
        for chain in self.node_chains:
            for old, new in chain:
                names |= {new} if old in names else set()
        return tuple(sorted(names))

    @cached_property
    def frees(self) -> bool:
        """Whether any step is a free function of the state."""
        return any(change.whole for step in (*self.upgrades, *self.downgrades) for change in step.changes)

    def midway(self, verdict: Verdict) -> Midway | None:
        """As what everything is seen by the first free function on the way of `verdict`; None where there is none."""
        for step in verdict.steps:
            for at, change in enumerate(step.changes):
                if change.whole:
                    found = self._midways.get((step, at))
                    if found is None:
                        found = self._midways[step, at] = Midway(self, step, at)
                    return found
        return None

    @cached_property
    def deltas(self) -> Mapping[str, Any]:
        """The delta channels that the state declares, as LangGraph's channels."""
        return {name: channel for state in reversed(self.states) for name, channel in deltas_of(state).items()}

    @cached_property
    def renames_classes(self) -> bool:
        """Whether any step gives a class another name."""
        return any(change.classes for step in (*self.upgrades, *self.downgrades) for change in step.changes)

    def judge(self, stamp: bytes | None, place: Where) -> Verdict:
        """What a stamp means. Raises `SchemaMismatch` when no declared way leads from it to this schema."""
        found = self._verdicts.get(stamp)
        if found is None:
            found = self._judge(stamp, place)
            if len(self._verdicts) < _KNOWN:
                self._verdicts[stamp] = found
        return found

    def _judge(self, data: bytes | None, place: Where) -> Verdict:
        if data is None:
            if self.unstamped is None:
                raise self.refusal(
                    place, None, "was written without a schema", "declare what it is of, with unstamped=…"
                )
            return self._along(self.unstamped, place)
        stamp = decode(data)
        if stamp.name not in self.names:
            raise self.refusal(
                place,
                stamp.version,
                f"was written with version {stamp.version} of schema {stamp.name!r}",
                f"use the release that knows this schema, or declare formerly=[{stamp.name!r}]",
            )
        if stamp.version == self.version:
            same = not stamp.fingerprint or stamp.fingerprint in self.shape.fingerprints
            return Verdict(self.version, (), None if same else stamp.table)
        if stamp.since <= self.version < stamp.version and self.path(stamp.version) is None:
            return Verdict(self.version)
        return self._along(stamp.version, place)

    def _along(self, version: int, place: Where) -> Verdict:
        steps = self.path(version)
        if steps is None:
            newer = version > self.version
            raise self.refusal(
                place,
                version,
                f"was written with version {version} of schema {self.name!r}",
                f"deploy the release that has version {version}, or declare downgrades=[Step({version}, {self.version}, …)]"
                if newer
                else f"declare the upgrades=[…] that lead from {version} to {self.version}",
            )
        return Verdict(version, steps)

    def path(self, version: int) -> tuple[Step, ...] | None:
        """The fewest steps from `version` to this one; None when there is no way."""
        steps = self.upgrades if version < self.version else self.downgrades
        ways: deque[tuple[Step, ...]] = deque([()])
        reached = {version}
        while ways:
            way = ways.popleft()
            at = way[-1].target if way else version
            if at == self.version:
                return way
            for step in steps:
                if step.source == at and step.target not in reached:
                    reached.add(step.target)
                    ways.append((*way, step))
        return None

    def refusal(self, place: Where, found: int | None, what: str, advice: str) -> SchemaMismatch:
        """The error that names thread, checkpoint and both versions."""
        return SchemaMismatch(
            self._words(place, what, advice),
            thread=place.thread,
            ns=place.ns,
            checkpoint=place.id,
            schema=self.name,
            found=found,
            expected=self.version,
        )

    def _words(self, place: Where, what: str, advice: str) -> str:
        ours = f"this release has version {self.version} of schema {self.name!r}"
        return f"{place} {what}; {ours}. Nothing was changed: {advice}."

    def takes_up(self, stamp: bytes | None, place: Where) -> bool:
        """Whether a write with this stamp counts. Where one does that nobody here can read, `judge` says so."""
        return True

    def drifted(self, verdict: Verdict, stored: Iterable[str]) -> Drift:
        """How the stored shape of `verdict` differs from the schema's."""
        return drift(self.shape, verdict.table or b"", stored)

    # Upgrading.

    def upgrade(
        self,
        image: Image,
        verdict: Verdict,
        writes: Mapping[int, Sequence[Write]],
        names: Sequence[str] = (),
        *,
        past: Mapping[str, Any] | None,
    ) -> None:
        """Bring `image` to this version. `writes` are its pending writes, by the version they are of; `names` are what
        releases call its namespace, the oldest first. `past` are the delta channels that the first free function is to see
        (`milepost.rebuilding`); with None, free functions are not called, and only the writes are of this version then.

        Raises `SchemaMismatch` for what no change says anything about.
        """
        waiting = dict(writes)
        place = Where(image.thread, image.ns, image.id)
        carried = gathered(image, waiting.pop(verdict.version, ()), names)
        seen = past
        try:
            for step in verdict.steps:
                for change in step.changes:
                    if change.whole and seen:
                        image.values.update(seen)
                        seen = {}
                    carried = carry(change, image, carried, state=past is not None)
                carried += gathered(image, waiting.pop(step.target, ()), names)
            for version, some in waiting.items():
                others = gathered(image, some, names)
                left: list[Write] = []
                for step in self._along(version, place).steps:
                    for change in step.changes:
                        others = carry_writes(change, Tasks(image), others, str(place), left)
                carried += others
                image.gone += left
        except NotDeclared as exc:
            raise self.refusal(place, verdict.version, REFUSED, str(exc)) from exc
        image.writes = settled(carried)

    def check_nodes(self, image: Image) -> None:
        """Raise `SchemaMismatch` if `image`, which is of this version now, waits for a node that the graph does not have."""
        stranger = None if self.nodes is None else unknown_node(image, self.nodes)
        if stranger is not None:
            raise self.refusal(
                Where(image.thread, image.ns, image.id),
                image.version,
                f"waits for node {stranger!r}, which is not among the schema's nodes",
                f"declare a version in which rename_node({stranger!r}, …) or drop_node({stranger!r}, …) says what became of "
                "it, or add it to nodes=",
            )

    def former_names(self, channel: str) -> frozenset[str]:
        """Every name under which what is now `channel` may be stored."""
        names: set[str] = {channel}
        steps = (*self.upgrades, *self.downgrades, *self._rest)
        mentioned = {name for step in steps for change in step.changes for name in change.renamed_from}
        grown = True
        while grown:
            before = {name for name in mentioned - names if any(_renamed(step, name) in names for step in steps)}
            names |= before
            grown = bool(before)
        return frozenset(names)

    def history_writes(self, verdict: Verdict, channel: str, value: Any, place: Where) -> Sequence[tuple[str, Any]]:
        """A write that a delta channel is rebuilt from, as it is now."""
        found: list[tuple[str, Any]] = [(channel, value)]
        try:
            for step in verdict.steps:
                for change in step.changes:
                    found = [new for old in found for new in carry_update(change, *old, str(place))]
        except NotDeclared as exc:
            raise self.refusal(place, verdict.version, REFUSED, str(exc)) from exc
        return found

    def history_seed(self, verdict: Verdict, channel: str, value: Any, place: Where) -> Any:
        """The value of a delta channel in a checkpoint, as it is now. `channel` is its name there."""
        try:
            for step in verdict.steps:
                for change in step.changes:
                    snapshot = isinstance(value, _DeltaSnapshot)
                    new = change.value(channel, value.value if snapshot else value)
                    value = _DeltaSnapshot(new) if snapshot else new
                    channel = change.channel(channel) or channel
        except NotDeclared as exc:
            raise self.refusal(place, verdict.version, REFUSED, str(exc)) from exc
        return value


class Midway(Schema):
    """A schema on the way to its version, just before one of its free functions: by the names and in the forms that this one
    is given."""

    def __init__(self, schema: Schema, step: Step, at: int) -> None:
        version = step.source
        upgrades, downgrades = _leading(schema.upgrades, version), _leading(schema.downgrades, version)
        known = {version, *(one.source for one in (*upgrades, *downgrades))}
        super().__init__(
            schema.states,
            version=version,
            upgrades=(one for one in upgrades if one.source < version),
            downgrades=(one for one in downgrades if one.source > version),
            name=schema.name,
            formerly=schema.names - {schema.name},
            unstamped=schema.unstamped if schema.unstamped in known else None,
        )
        self._named = step.changes[at].deltas
        self._rest = (Step(step.source, step.target, *step.changes[:at]),) if at else ()

    def _judge(self, data: bytes | None, place: Where) -> Verdict:
        found = super()._judge(data, place)
        # Which shape the state had then, nobody declares.
        return Verdict(found.version, (*found.steps, *self._rest))

    def takes_up(self, stamp: bytes | None, place: Where) -> bool:
        # What a newer release has written to a checkpoint, the one that went on from there has not seen.
        try:
            self.judge(stamp, place)
        except SchemaMismatch:
            return False
        return True

    def channel(self, name: str, table: bytes, stored: str) -> Any:
        """What rebuilds the delta channel `name`, which a checkpoint of shape `table` calls `stored`; None if nothing tells.
        What the state declares counts if its type and its reducer are those of then, by their names: two partials, objects
        or lambdas may have one."""
        if name in self._named:
            return self._named[name]
        found = self.deltas.get(name)
        same = found is not None and has_name(found.reducer) and kept_type(self.shape, name, table, stored)
        return found if same else None

    def _words(self, place: Where, what: str, advice: str) -> str:
        # Of a checkpoint that is looked at for another one, whose error this becomes a part of.
        lost = f"and no steps lead from there to version {self.version}, in which it is looked at"
        return f"{place} {what}: {advice}" if what == REFUSED else f"{place} {what}, {lost}"


def settled(writes: Iterable[Write]) -> list[Write]:
    """One write for each place: of special ones the newest, of ordinary ones the first. Where an upgrade has made several
    of one, the task's are numbered anew, in order.

    A task's answers only become more, so they tell what is newer where releases took turns; otherwise the version does.
    """
    every = list(writes)
    answers = {_origin(write): len(write.value) for write in every if _answers(write)}
    kept: dict[tuple[str, int], list[Write]] = {}
    for write in sorted(every, key=lambda write: (answers.get(_origin(write), 0), write.version, write.origin)):
        place = write.task, write.idx
        if place in kept and _origin(kept[place][0]) == _origin(write) and write.idx >= 0:
            kept[place].append(write)
        elif place not in kept or write.idx < 0:
            kept[place] = [write]
    several = {task for (task, _), some in kept.items() if len(some) > 1}
    found = [write for (task, idx), some in kept.items() if idx < 0 or task not in several for write in some]
    for task in several:
        places = sorted(idx for one, idx in kept if one == task and idx >= 0)
        ordered = (write for idx in places for write in kept[task, idx])
        found += (replace(write, idx=number) for number, write in enumerate(ordered))
    return found


def _origin(write: Write) -> tuple[str, int, int]:
    return write.task, write.version, write.origin


def _answers(write: Write) -> bool:
    """Whether it is all the answers that a task has had: the one for whoever asks first has no path."""
    return write.channel == RESUME and bool(write.path) and isinstance(write.value, list)


def current_name(verdict: Verdict, channel: str) -> str | None:
    """What a stored channel is called now; None when it was dropped."""
    name: str | None = channel
    for step in verdict.steps:
        name = None if name is None else _renamed(step, name)
    return name


def classes_of(verdict: Verdict) -> Classes:
    """The classes under other names that values of this verdict may hold, with where they are now."""
    classes: dict[ClassName, type | ClassName] = {}
    for step in verdict.steps:
        for change in step.changes:
            for old, new in change.classes.items():
                classes = {name: new if _named(target) == old else target for name, target in classes.items()}
                classes.setdefault(old, new)
    return classes


def node_renames(steps: Iterable[Step]) -> tuple[tuple[str, str], ...]:
    """The nodes that `steps` rename, as (old, new), in order."""
    return tuple(
        (node, new)
        for step in steps
        for change in step.changes
        for node in change.nodes
        if not change.restarts(node) and (new := change.node(node)) is not None
    )


def _leading(steps: Iterable[Step], version: int) -> list[Step]:
    """Those by which one comes to `version`."""
    leading: list[Step] = []
    reached, left = {version}, list(steps)
    while found := [step for step in left if step.target in reached]:
        leading += found
        reached |= {step.source for step in found}
        left = [step for step in left if step not in found]
    return leading


def _renamed(step: Step, name: str) -> str | None:
    found: str | None = name
    for change in step.changes:
        found = None if found is None else change.channel(found)
    return found


def _named(target: type | ClassName) -> ClassName:
    return (target.__module__, target.__qualname__) if isinstance(target, type) else target


def _version(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _NEWEST:
        raise InvalidConfig(
            f"{what} is {value!r:.200}: versions are whole numbers from 1 on (below 2**63)",
            what=what,
            value=repr(value)[:200],
        )
    return value


def _steps(given: object, *, up: bool) -> tuple[Step, ...]:
    what = "upgrades" if up else "downgrades"
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise InvalidConfig(f"{what} is {given!r:.200}: it must be a list of Steps", what=what, value=repr(given)[:200])
    steps: list[Step] = []
    ways: set[tuple[int, int]] = set()
    for step in cast("Iterable[object]", given):
        if not isinstance(step, Step):
            raise InvalidConfig(f"{what} holds {step!r:.200}, which is no Step", what=what, value=repr(step)[:200])
        if (step.source < step.target) != up or step.source == step.target:
            raise InvalidConfig(f"{what} holds a step from {step.source} to {step.target}", what=what)
        if (step.source, step.target) in ways:
            raise InvalidConfig(f"{what} holds two steps from {step.source} to {step.target}", what=what)
        ways.add((step.source, step.target))
        steps.append(step)
    return tuple(steps)
