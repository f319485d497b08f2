"""Which parts of a thread may go: pure functions from its outline to what stays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from operator import attrgetter

from milepost.errors import InvalidConfig
from milepost.parents import Place, ancestors
from milepost.places import ATTACHMENTS, BEFORE, spaces_of
from milepost.store import CheckpointRow, Mark, Span, WriteRow, merge_spans
from milepost.units import Duration, count, flag, seconds

ORPHAN = 86400.0
"""Seconds after which the checkpoint of a call whose root checkpoint is not there was left behind: a run that stores only
at its end may store that of the call first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints of a thread stay.

    `keep_last`, `keep_for` and `thin` each keep some, in each namespace by itself; a checkpoint goes when none of them
    keeps it. With none of the three every checkpoint stays. Whatever they say, these stay:

    - the latest checkpoint of each namespace, and of one that compaction put, what a run that had read the one before
      needs for its delta channels;
    - what a delta channel of a checkpoint that stays is rebuilt from;
    - what replaying a checkpoint that stays would read in the namespaces of its subgraphs;
    - pending writes whose checkpoint is not there (yet), and what the caller holds (an unsettled call, say).

    The namespace of a single call of a subgraph stays and goes with the root checkpoint that made the call. Where that is
    not there, nothing can reach it: with a limit it goes after a day.

    Raises `InvalidConfig` for limits that are negative or of the wrong type.
    """

    keep_last: int | None = None
    """The newest so many of each namespace."""
    keep_for: Duration | None = None
    """Those put within this time."""
    thin: Sequence[tuple[Duration, Duration]] = ()
    """Pairs (age, interval): of those older than `age`, and not than the next age, the newest of each `interval`."""
    keep_waiting: bool = True
    """Those that have pending writes and no child: somebody is asked something there, or a step is half done. And
    threads with such a checkpoint, however idle they are."""
    keep_forks: bool = True
    """Those at which branches part that stay."""
    keep_pinned: bool = True
    """Those whose metadata has a true value under "pinned", and threads that have one."""
    idle_thread: Duration | None = None
    """Threads whose last checkpoint was put longer ago are deleted. By the policy that speaks for the root namespace; in
    each namespace what waits, or is pinned, holds the thread by the policy that speaks there."""
    threads: str | None = None
    """Only threads whose id matches this pattern (``*``, ``?``, ``[ab]``)."""
    namespaces: str | None = None
    """Only namespaces that match this pattern; "" is the root alone. Others keep everything."""

    def __post_init__(self) -> None:
        if self.keep_last is not None:
            count(self.keep_last, "keep_last")
        for what in ("keep_for", "idle_thread"):
            if getattr(self, what) is not None:
                seconds(getattr(self, what), what)
        for what in ("threads", "namespaces"):
            if not isinstance(getattr(self, what), str | None):
                raise InvalidConfig(f"{what} is {getattr(self, what)!r}: it must be a pattern", what=what)
        for what in ("keep_waiting", "keep_forks", "keep_pinned"):
            flag(getattr(self, what), what)
        thin: object = self.thin
        if not isinstance(thin, Sequence) or isinstance(thin, str):
            raise InvalidConfig(f"thin is {thin!r}: it must be a list of pairs (age, interval)", what="thin")
        for at, pair in enumerate(thin):
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise InvalidConfig(f"thin[{at}] is {pair!r}: it must be a pair (age, interval)", what="thin")
            for part in pair:
                seconds(part, f"thin[{at}]")
        if self.idle_thread is not None and self.namespaces is not None and not fnmatchcase("", self.namespaces):
            raise InvalidConfig(
                f"idle_thread deletes whole threads, and namespaces is {self.namespaces!r}, which is not the root: use two "
                "policies, one with idle_thread for all namespaces behind this one",
                what="idle_thread",
            )

    def limits(self) -> bool:
        """Whether there is anything that could make a checkpoint go."""
        return self.keep_last is not None or self.keep_for is not None or bool(self.thin)

    def chosen(self, rows: Sequence[Mark], now: float) -> Iterator[Mark]:
        """Those of one namespace's checkpoints, newest first, that `keep_last`, `keep_for` or `thin` keeps."""
        if not self.limits():
            yield from rows
            return
        last = self.keep_last or 0
        if self.keep_for is None and not self.thin:
            yield from rows[:last]
            return
        since = now if self.keep_for is None else now - seconds(self.keep_for, "keep_for")
        thin = sorted(((seconds(age, "thin"), -seconds(interval, "thin")) for age, interval in self.thin), reverse=True)
        taken: set[tuple[float, int]] = set()
        for number, row in enumerate(rows):
            thinned = False
            if tier := next((tier for tier in thin if row.at < now - tier[0]), None):
                # The newest of each interval, so that a later run finds the same one there.
                mark = tier[0], int(row.at // -tier[1])
                thinned = mark not in taken
                taken.add(mark)
            if number < last or (self.keep_for is not None and row.at >= since) or thinned:
                yield row


@dataclass(frozen=True, slots=True)
class Facts:
    """What retention has to know of a checkpoint's header."""

    channels: Collection[str] = ()
    """Those that have a value in it."""
    deltas: Collection[str] = ()
    """The delta channels that it has, with or without a value."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """Namespace above -> the checkpoint that this one of a subgraph was made under."""
    stamp: bytes | None = None
    """Of the schema that it was stored under."""
    forked: bool = False
    """Whether LangGraph made it for a fork or an update: replaying it reads subgraphs as of its parent."""
    pinned: bool = False
    run: str | None = None
    """The run that put it."""
    compacted: bool = False
    """Whether compaction put it, in the place of its parent."""


@dataclass(frozen=True)
class Lineage:
    """A thread as retention sees it."""

    rows: Mapping[Place, Mark]
    facts: Callable[[Mark], Facts | None]
    """What a header says; None while it was not read. What is chosen then is chosen for good only once nothing that was
    asked for is missing: see `milepost.survey.Survey`."""
    written: frozenset[Place] = frozenset()
    """Where there are pending writes."""

    @cached_property
    def spaces(self) -> dict[str, list[Mark]]:
        """The checkpoints of each namespace, newest first."""
        spaces: dict[str, list[Mark]] = {}
        for row in sorted(self.rows.values(), key=attrgetter("key"), reverse=True):
            spaces.setdefault(row.ns, []).append(row)
        return spaces

    @cached_property
    def children(self) -> Counter[tuple[str, str | None]]:
        """How many checkpoints have each one as their parent."""
        return Counter(map(attrgetter("ns", "parent"), self.rows.values()))

    @cached_property
    def _perhaps_pinned(self) -> list[Mark]:
        return [row for row in self.rows.values() if row.pinned is not False]

    def heads(self) -> set[Place]:
        """The latest checkpoint of each namespace."""
        return {(ns, rows[0].id) for ns, rows in self.spaces.items()}

    def _replayed(self, firm: set[Place]) -> set[Place]:
        """What is read in the namespaces of subgraphs that remember when one of the root checkpoints in `firm` is
        replayed."""
        spaces = {ns: rows for ns, rows in self.spaces.items() if _remembers(ns)}
        roots = {place for place in firm & self.rows.keys() if not place[0]}
        if not spaces or not roots:
            return set()
        roots = self._with_bounds(self.needed(roots))
        ids = sorted((id for _, id in roots), reverse=True)
        return roots.union(*(_as_of(rows, ids) for rows in spaces.values()))

    def replaced(self, ns: str) -> set[Place]:
        """The checkpoints that compaction put the latest one of `ns` in the place of, if they have delta channels.

        A run that had read one of them may still be at work. What it puts next is a child of that, and its delta channels
        are rebuilt from there (other channels come with the put). So they stay until somebody has gone on from the
        smaller one.
        """
        found: set[Place] = set()
        row = next(iter(self.spaces.get(ns, ())), None)
        while row is not None and (facts := self.facts(row)) is not None and facts.compacted:
            row = None if row.parent is None else self.rows.get((ns, row.parent))
            if row is None or (ns, row.id) in found:
                break
            found.add((ns, row.id))
        return {place for place in found if (facts := self.facts(self.rows[place])) is not None and facts.deltas}

    def latest(self) -> set[Place]:
        """What a thread goes on from, the latest checkpoint of each namespace, and what is pinned, with what these replay.

        The namespace of a single call of a subgraph (it has a task id, after a colon) goes with the root checkpoint
        that made the call, once that one was stored: nothing will ever resume it.
        """
        heads = {place for place in self.heads() if not place[0].startswith(BEFORE)}
        pinned = {(row.ns, row.id) for row in self._perhaps_pinned if self.pinned(row)}
        firm = self._with_roots(pinned) & self.rows.keys()
        # Who goes on from a fork reads subgraphs as of its parent; from any other latest checkpoint, as they are.
        forks = {place for place in heads if (facts := self.facts(self.rows[place])) is not None and facts.forked}
        firm |= self._replayed(firm | forks) | {place for ns, _ in heads for place in self.replaced(ns)}
        roots = self.needed(place for place in heads | firm if not place[0])
        kept = {place for place in heads if not self._over(self.rows[place], roots)} | firm
        # What they are rebuilt from stays for them alone: it is not what its own channels need that is needed, too.
        return kept | self._company(self.needed(kept))

    def pinned(self, row: Mark) -> bool:
        """Whether somebody wants the checkpoint to stay."""
        if row.pinned is not None:
            return row.pinned
        facts = self.facts(row)
        return facts is not None and facts.pinned

    def _with_roots(self, firm: set[Place]) -> set[Place]:
        """`firm`, and the roots that those of single calls of a subgraph are reached by."""
        calls = (self._call(self.rows[at]) for at in firm if at in self.rows)
        return firm | {("", root) for root in calls if root is not None}

    def needed(self, kept: Iterable[Place], *, originals: bool = True) -> set[Place]:
        """`kept`, and the ancestors that their delta channels are rebuilt from: up to the nearest one with a value. One of
        another schema's version is upgraded as a whole for that, so that what it needs is needed too. So is, with
        `originals`, what is needed by that which a migration keeps of them."""
        needed = set(kept)
        ahead = [*needed, *self._originals(needed)] if originals else [*needed]
        # Per ancestor, the channels that were looked for there: what one walk found the next one need not.
        sought: dict[Place, set[str]] = {}
        for place in ahead:
            row = self.rows[place]
            facts = self.facts(row)
            stamp = None if facts is None else facts.stamp
            missing = set(facts.deltas) - set(facts.channels) if facts is not None else set[str]()
            parent = row.parent
            while missing and parent is not None and (above := self._above(row.ns, parent)) is not None:
                before = sought.setdefault((above.ns, above.id), set())
                missing -= before
                before |= missing
                if missing:
                    needed |= self._both(above)
                    facts = self.facts(above)
                    if facts is None:
                        break
                    if facts.stamp != stamp:
                        stamp = facts.stamp
                        ahead.append((above.ns, above.id))
                    missing -= set(facts.channels)
                parent = above.parent
        return needed

    def _above(self, ns: str, parent: str) -> Mark | None:
        """A parent in a namespace; of what a migration keeps, the kept one if it was rewritten too."""
        found = self.rows.get((ns, parent))
        return self.rows.get((spaces_of(ns)[0], parent)) if found is None and ns.startswith(BEFORE) else found

    def _both(self, row: Mark) -> set[Place]:
        """A checkpoint; of what a migration keeps, with the one that it would be put in the place of."""
        places = {(row.ns, row.id)}
        return places | {(spaces_of(row.ns)[0], row.id)} & self.rows.keys() if row.ns.startswith(BEFORE) else places

    def _originals(self, places: Collection[Place]) -> list[Place]:
        """What a migration keeps of some checkpoints: put back, they are rebuilt from the same ancestors."""
        beside = (row for ns, rows in self.spaces.items() if ns.startswith(BEFORE) for row in rows)
        return [(row.ns, row.id) for row in beside if (spaces_of(row.ns)[0], row.id) in places]

    def kept(
        self, policies: Sequence[Retention], thread: str, now: float, held: Collection[Place] = frozenset()
    ) -> set[Place]:
        """What stays by the first of `policies` that speaks for the thread and the namespace, with all that needs."""
        spoken = _spoken(policies, thread)
        firm = self._with_roots(self._pinned(spoken) | set(held))
        forced = (firm & self.rows.keys()) | self._waiting(spoken)
        kept = self._of_space(spoken, "", self.spaces.get("", ()), now, forced)
        spaces = {ns: rows for ns, rows in self.spaces.items() if ns != ATTACHMENTS and not ns.startswith(BEFORE)}
        if any(map(_remembers, spaces)):
            kept = self._with_bounds(kept)
        roots = sorted((id for _, id in kept), reverse=True)
        for ns, rows in spaces.items():
            if ns:
                policy = _policy_of(spoken, ns)
                lost = now - ORPHAN if policy is not None and policy.limits() else -math.inf
                alive = [
                    row
                    for row in rows
                    if not (self._over(row, kept) or (row.at < lost and self._orphaned(row, forced)))
                ]
                chosen = self._of_space(spoken, ns, alive, now, forced)
                if ":" not in ns:
                    chosen = self.needed(chosen | _as_of(rows, roots))
                kept = kept | chosen
        return kept | self._company(kept)

    def _company(self, kept: set[Place]) -> set[Place]:
        """What a migration keeps of `kept`, and the attachments, which any message may name."""
        beside = [ns for ns in self.spaces if ns == ATTACHMENTS or ns.startswith(BEFORE)]
        return {
            (ns, row.id)
            for ns in beside
            for row in self.spaces[ns]
            if ns == ATTACHMENTS or (spaces_of(ns)[0], row.id) in kept
        }

    def _of_space(
        self, policies: Sequence[Retention], ns: str, rows: Sequence[Mark], now: float, forced: set[Place]
    ) -> set[Place]:
        policy = _policy_of(policies, ns)
        kept = {(ns, row.id) for row in (rows if policy is None else policy.chosen(rows, now))}
        kept |= {(ns, row.id) for row in rows[:1]} | self.replaced(ns)
        if any(place[0] == ns for place in forced):
            kept |= {(ns, row.id) for row in rows if (ns, row.id) in forced}
        kept = self.needed(kept)
        if policy is not None and policy.keep_forks:
            kept = self.needed(kept | self._forks(kept))
        return kept

    def _with_bounds(self, kept: set[Place]) -> set[Place]:
        """`kept`, with the parents as of which subgraphs that remember are read when a fork is replayed."""
        while True:
            forks = [row for place in kept if (facts := self.facts(row := self.rows[place])) and facts.forked]
            bounds = {(row.ns, row.parent) for row in forks if row.parent is not None} & self.rows.keys() - kept
            if not bounds:
                return kept
            kept = self.needed(kept | bounds)

    def _pinned(self, policies: Sequence[Retention]) -> set[Place]:
        return {
            (row.ns, row.id)
            for row in self._perhaps_pinned
            if self.pinned(row) and ((policy := _policy_of(policies, row.ns)) is None or policy.keep_pinned)
        }

    def _waiting(self, policies: Sequence[Retention]) -> set[Place]:
        return {
            place
            for place in self.rows.keys() & (self.written - self.children.keys())
            if (policy := _policy_of(policies, place[0])) is None or policy.keep_waiting
        }

    def _call(self, row: Mark) -> str | None:
        facts = self.facts(row) if ":" in row.ns else None
        return None if facts is None else facts.parents.get("")

    def _over(self, row: Mark, roots: Collection[Place]) -> bool:
        """Whether `row` is of a call whose root checkpoint is there and not among those that stay, `roots`."""
        root = self._call(row)
        return root is not None and ("", root) in self.rows and ("", root) not in roots

    def _orphaned(self, row: Mark, forced: Collection[Place]) -> bool:
        """Whether `row` is of a call whose root checkpoint is not there, though it should be by now."""
        root = self._call(row)
        return root is not None and ("", root) not in self.rows and (row.ns, row.id) not in forced

    def _forks(self, kept: Collection[Place]) -> set[Place]:
        """The checkpoints at which ways to those in `kept` part."""
        if max(self.children.values(), default=0) < 2:
            return set()
        children: dict[Place, int] = {}
        walked: set[Place] = set(kept)
        for place in kept:
            for above, _ in ancestors(self.rows, place):
                children[above] = children.get(above, 0) + 1
                if above in walked:
                    break
                walked.add(above)
        return {place for place, number in children.items() if number > 1}

    def parent_among(self, row: Mark, kept: Collection[Place]) -> str | None:
        """The nearest ancestor of `row` that is in `kept`; a parent that was never stored is left as it is."""
        parent, walked = row.parent, {row.id}
        while parent is not None and (row.ns, parent) not in kept:
            above = self.rows.get((row.ns, parent))
            if above is None:
                return parent if parent == row.parent else None
            if above.id in walked:
                return None
            walked.add(above.id)
            parent = above.parent
        return parent

    def idle(self, policies: Sequence[Retention], thread: str, now: float) -> bool:
        """Whether the whole thread may go, for not having been used."""
        spoken = _spoken(policies, thread)
        policy = _policy_of(spoken, "")
        if policy is None or policy.idle_thread is None or not self.rows:
            return False
        if max(row.at for row in self.rows.values()) >= now - seconds(policy.idle_thread, "idle_thread"):
            return False
        # A namespace that no policy speaks for keeps what every policy keeps unless it is told not to.
        spoken.append(Retention())
        # What waits in a call that is over is asked by nobody any more.
        roots = self.latest()
        waits = any(place in roots or self._call(self.rows[place]) is None for place in self._waiting(spoken))
        return not waits and not self._pinned(spoken)


def _spoken(policies: Sequence[Retention], thread: str) -> list[Retention]:
    return [policy for policy in policies if policy.threads is None or fnmatchcase(thread, policy.threads)]


def _policy_of(policies: Sequence[Retention], ns: str) -> Retention | None:
    for policy in policies:
        if policy.namespaces is None or fnmatchcase(ns, policy.namespaces):
            return policy
    return None


def _remembers(ns: str) -> bool:
    """Whether it is the namespace of a subgraph that goes on from call to call."""
    return bool(ns) and ":" not in ns and ns != ATTACHMENTS and not ns.startswith(BEFORE)


def _as_of(rows: Sequence[Mark], roots: Sequence[str]) -> set[Place]:
    """For each of `roots`, which descend, the newest of `rows` before it: what replaying that root reads."""
    found: set[Place] = set()
    at = 0
    for root in roots:
        while at < len(rows) and rows[at].key >= root:
            at += 1
        if at == len(rows):
            break
        found.add((rows[at].ns, rows[at].id))
    return found


def live_spans(rows: Iterable[CheckpointRow], writes: Iterable[WriteRow]) -> tuple[Span, ...]:
    """Every item that checkpoints and pending writes refer to."""
    every: Iterable[CheckpointRow | WriteRow] = chain(rows, writes)
    return merge_spans(span for row in every for span in row.spans)
