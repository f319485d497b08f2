"""What can change between two versions of a state, as declarations. Each says what becomes of names and values;
`milepost.schema.carry` applies that to everything a checkpoint keeps under them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.errors import InvalidConfig
from milepost.places import COUNTERS
from milepost.schema.image import BRANCH, CONTROL, INTERRUPT, JOIN, NO_WRITES, START, TASKS, Image, starts_of

Function = TypeVar("Function", bound=Callable[..., Any])
ClassName = tuple[str, str]
"""(module, qualified name)."""

PLUMBING: Final = ("__", BRANCH, JOIN)
"""How the channels begin that LangGraph makes by itself."""
RESERVED: Final = CONTROL | {START, TASKS, NO_WRITES, "__end__"}
"""What LangGraph calls by itself: no node. As channels, all but the last, which is the result of an entrypoint."""

_LEFT_OUT: Final[Any] = object()


class NotDeclared(Exception):
    """An upgrade meets something that it says nothing about."""


class Rename(NamedTuple):
    """Of a channel, a node or a class."""

    kind: str
    old: str
    new: str


class Change:
    """One change. As it stands, it changes nothing."""

    classes: Mapping[ClassName, type | ClassName] = {}
    """Classes under other names, for the decoder."""
    nodes: tuple[str, ...] = ()
    """Nodes whose name changes."""
    calls: tuple[str, ...] = ()
    """Tasks of the functional API that may have been called by those."""
    renamed_from: tuple[str, ...] = ()
    """Channels whose name changes, by their names before."""
    rename: Rename | None = None
    """The one thing that has another name then, and is there still."""
    adds: tuple[str, ...] = ()
    """Channels that it makes."""
    maps: tuple[str, ...] = ()
    """Channels whose values it changes, by their names before."""
    whole: bool = False
    """Whether it looks at all of the state, so that nothing may be left out."""
    deltas: Mapping[str, Any] = {}
    """How delta channels that it looks at are rebuilt, by their names before, where the schema's state does not tell."""

    def channel(self, name: str) -> str | None:
        """What the channel is called now; None when there is none any more."""
        return name

    def node(self, name: str) -> str | None:
        """What the node is called now; None when there is none any more."""
        return name

    def restarts(self, node: str) -> bool:
        """Whether what a task of this node did so far is of no use any more."""
        return False

    def value(self, channel: str, value: Any) -> Any:
        """What the value of a channel becomes. `channel` is its name before."""
        return value

    def update(self, channel: str, value: Any) -> Any:
        """What becomes of a value that a task wrote to a channel."""
        return value

    def updates(self, channel: str, value: Any, where: str) -> Iterable[tuple[str, Any]]:
        """What is written now in the place of one write. `where` is for messages."""
        name = self.channel(channel)
        return () if name is None else ((name, self.update(channel, value)),)

    def amend(self, image: Image) -> None:
        """What names and values alone do not say. Called last, on the checkpoint itself."""


class _RenameChannel(Change):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self.renamed_from = (old,)
        self.rename = Rename("channel", old, new)

    def channel(self, name: str) -> str:
        return self._new if name == self._old else name


class _DropChannel(Change):
    def __init__(self, name: str) -> None:
        self._name = name

    def channel(self, name: str) -> str | None:
        return None if name == self._name else name


class _AddChannel(Change):
    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._name = name
        self._make = make
        self.adds = (name,)

    def amend(self, image: Image) -> None:
        if self._name not in image.values:
            add(image, self._name, _result(f"the factory of add_channel({self._name!r})", self._make))


class _MapChannel(Change):
    def __init__(self, name: str, value: Callable[[Any], Any], update: Callable[[Any], Any]) -> None:
        self._name = name
        self._value = partial(_result, f"the function of map_channel({name!r})", value)
        self.maps = (name,)
        self._update = partial(_result, f"the function of map_channel({name!r}) for updates", update)

    def value(self, channel: str, value: Any) -> Any:
        return self._value(value) if channel == self._name else value

    def update(self, channel: str, value: Any) -> Any:
        if channel != self._name:
            return value
        if value.__class__ is dict and set(value) == {"__overwrite__"}:
            return {"__overwrite__": self._value(value["__overwrite__"])}
        if type(value).__name__ == "Overwrite" and type(value).__module__ == "langgraph.types":
            return type(value)(self._value(value.value))
        return self._update(value)


class _RenameNode(Change):
    def __init__(self, old: str, new: str | None, calls: Iterable[str] = ()) -> None:
        self._old, self._new = old, new
        self.nodes = (old,)
        self.calls = tuple(calls)
        self.rename = None if new is None else Rename("node", old, new)

    def node(self, name: str) -> str | None:
        return self._new if name == self._old else name

    def channel(self, name: str) -> str | None:
        if name == BRANCH + self._old:
            return None if self._new is None else BRANCH + self._new
        join = starts_of(name)
        return name if join is None else self._join(*join)

    def _join(self, starts: Iterable[str], end: str) -> str | None:
        # In plus signs, a name that holds one itself is found as well.
        text = f"+{'+'.join(starts)}+"
        left = self._new is None or f"+{self._new}+" in text
        waited_for = text.replace(f"+{self._old}+", "+" if left else f"+{self._new}+").strip("+")
        behind = self.node(end)
        if not waited_for or behind is None:
            return None
        # What waits for one node alone is an edge from it.
        alone = f"+{self._old}+" in text and left and "+" not in waited_for
        return f"{BRANCH}{behind}" if alone else f"{JOIN}{waited_for}:{behind}"


class _DropNode(_RenameNode):
    def __init__(self, old: str, new: str | None) -> None:
        super().__init__(old, new)
        self.rename = None

    def restarts(self, node: str) -> bool:
        return node == self._old


class _RenameClass(Change):
    def __init__(self, old: ClassName, new: type | ClassName) -> None:
        self.classes = {old: new}
        target = (new.__module__, new.__qualname__) if isinstance(new, type) else new
        self.rename = Rename("class", ":".join(old), ":".join(target))


class _MapState(Change):
    whole = True

    def __init__(
        self,
        function: Callable[[dict[str, Any]], Mapping[str, Any]],
        writes: Callable[[str, Any], Iterable[tuple[str, Any]]] | None,
        deltas: Mapping[str, Any],
    ) -> None:
        self._function = function
        self._writes = writes
        self.deltas = deltas

    def updates(self, channel: str, value: Any, where: str) -> Iterable[tuple[str, Any]]:
        if channel.startswith(PLUMBING):
            return ((channel, value),)
        if self._writes is None:
            raise NotDeclared(
                f"{where} holds a write to channel {channel!r}, and the free function of an upgrade does not say what "
                "becomes of writes: pass map_state(function, writes=…)"
            )
        what = "the function of map_state for writes"
        found: list[tuple[str, Any]] = _result(what, _written, self._writes, channel, value)
        _check_keys(what, (name for name, _ in found))
        return found

    def amend(self, image: Image) -> None:
        values = image.values
        before = {
            name: value.value if isinstance(value, _DeltaSnapshot) else value
            for name, value in values.items()
            if not name.startswith(PLUMBING)
        }
        after = _result("the function of map_state", self._function, copy.copy(before))
        if not isinstance(after, Mapping):
            raise NotDeclared(f"the function of map_state returned {after!r:.200}: it must return the new state")
        _check_keys("the function of map_state", after)
        for name in before.keys() - after.keys():
            remove(image, name)
        for name, value in after.items():
            if name in before:
                values[name] = value
            else:
                add(image, name, value)
        counters = image.metadata.get(COUNTERS)
        if isinstance(counters, dict):
            image.metadata[COUNTERS] = {name: count for name, count in counters.items() if name in after}


def _written(function: Callable[[str, Any], Iterable[tuple[str, Any]]], channel: str, value: Any) -> Any:
    return [(name, new) for name, new in function(channel, value)]


def _check_keys(what: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or not name or name.startswith(PLUMBING):
            raise NotDeclared(f"{what} returned something for {name!r:.200}, which is no key of a state")


def _result(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the application returns. Raises `NotDeclared` when it raises."""
    try:
        return function(*arguments)
    except Exception as exc:
        raise NotDeclared(f"{what} raised {exc!r}") from exc


def check_renames(changes: Sequence[Change]) -> None:
    """Raise `InvalidConfig` where a new name is given away again, and nothing has taken the old one meanwhile.

    Renames that are meant to happen at once, such as an exchange, make one of two when they come one after the other.
    """
    for at, first in enumerate(change.rename for change in changes):
        if first is None or first.old == first.new:
            continue
        for later in changes[at + 1 :]:
            second = later.rename
            if second is not None and (second.kind, second.old) == (first.kind, first.new):
                raise InvalidConfig(
                    f"{first.kind} {first.old!r} is renamed to {first.new!r}, and that to {second.new!r}: one after the other, "
                    f"which makes one of both. If there was a {first.new!r} before, rename it first, and exchange names "
                    f"through a third one; if there was none, rename {first.old!r} to {second.new!r}",
                    what="changes",
                )
            taken = second is not None and (second.kind, second.new) == (first.kind, first.old)
            if taken or (first.kind == "channel" and first.old in later.adds):
                break  # that is what it made way for


def add(image: Image, name: str, value: Any) -> None:
    """Give a checkpoint a channel that nobody has written to."""
    versions = image.versions
    image.values[name] = value
    if name not in versions and versions:
        # The newest there is, so that it is kept by the next step; and seen, so that it triggers nothing.
        versions[name] = max(versions.values())
        seen = image.seen.get(INTERRUPT)
        if isinstance(seen, dict):
            seen.setdefault(name, versions[name])


def remove(image: Image, name: str) -> None:
    """Leave no trace of a channel in a checkpoint."""
    image.values.pop(name, None)
    image.versions.pop(name, None)
    for seen in image.seen.values():
        if isinstance(seen, dict):
            seen.pop(name, None)
    updated = image.checkpoint.get("updated_channels")
    if updated:
        image.checkpoint["updated_channels"] = [one for one in updated if one != name]


def rename_channel(old: str, new: str) -> Change:
    """A key of the state has another name. Values, versions, pending writes, the input of a run that has not begun, and
    the arguments of pending sends keep what they hold under it.

    Refused when read if a checkpoint has a value under both names.
    """
    return _RenameChannel(_key(old), _key(new))


def drop_channel(name: str) -> Change:
    """A key of the state is no more: no trace of it is left, so that nothing waits for it."""
    return _DropChannel(_key(name))


def add_channel(name: str, default: Any = _LEFT_OUT, *, factory: Callable[[], Any] | None = None) -> Change:
    """A new key of the state, with a value for checkpoints that have none: a copy of `default`, or what `factory`
    returns. One of the two is needed."""
    if default is ...:
        raise InvalidConfig(
            f"add_channel({name!r}, ...) is a draft: say which value it has where there is none", what=name
        )
    if (default is _LEFT_OUT) == (factory is None):
        raise InvalidConfig(
            f"add_channel({name!r}) needs a default or a factory, and not both: say which value it has where there is none",
            what="default",
        )
    make = partial(copy.deepcopy, default) if factory is None else _function(factory, "factory")
    if factory is None:
        try:
            make()
        except Exception as exc:
            raise InvalidConfig(
                f"the default of add_channel({name!r}) cannot be copied ({exc!r}): pass factory=…", what="default"
            ) from exc
    return _AddChannel(_key(name), make)


def map_channel(name: str, function: Callable[[Any], Any], *, update: Callable[[Any], Any] | None = None) -> Change:
    """The value of a key is another one: what `function` makes of it.

    It is applied to the channel's value, to the snapshots of a delta channel, and to what tasks have written and no
    step has taken up yet; where such an update has another form than the value (one element for a list), pass `update`.
    `function` must be pure: it is called each time a checkpoint is read.
    """
    return _MapChannel(_key(name), _function(function, "function"), _function(update or function, "update"))


def rename_node(old: str, new: str, *, calls: Iterable[str] = ()) -> Change:
    """A node has another name: what waits in it, waits there under the new one.

    For an entrypoint of the functional API, `calls` are the names of the tasks that it calls, as they are before this
    change. What such a task has done is kept under an id which is made of both names, and does not tell them.
    """
    return _RenameNode(_node(old), _node(new), names(calls, "calls"))


def drop_node(name: str, *, to: str | None = None) -> Change:
    """A node is no more. What waits for it or in it goes on in the node `to`, from its beginning; without `to`, it ends
    there. A question that a task of it asked is withdrawn.

    Refused when read if `to` has a task too, and either has written or asked something.
    """
    return _DropNode(_node(name), None if to is None else _node(to))


def rename_class(old: str, new: type | str) -> Change:
    """A class of which objects are stored has moved, or another one takes its place. `old` and, where it is text, `new`
    are written ``"module:Class"``. Acts before objects are built: the old module may be gone.

    Needs Milepost's own serializer.
    """
    return _RenameClass(_class_name(old), new if isinstance(new, type) else _class_name(new))


def map_state(
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    *,
    writes: Callable[[str, Any], Iterable[tuple[str, Any]]] | None = None,
    deltas: Mapping[str, Any] | None = None,
) -> Change:
    """A free function: from the state's values, by channel, to the new ones. A key that it leaves out is dropped.

    It sees the keys that have a value. A delta channel's is rebuilt for it from what the ancestors were written, by the
    ``DeltaChannel`` that `deltas` has under the channel's name before this change, or else by the one that the schema's
    state declares under that name, if the checkpoint was stored with the same type and reducer. Where there is neither, the
    checkpoint is refused when read.

    What tasks have written and no step has taken up yet is given to `writes`, one write at a time, which returns what is
    written instead (an ``Overwrite`` comes as it is); so is each key of the input of a run that has not begun, and of the
    argument of a pending send. Without it, a checkpoint with any of these is refused.
    """
    for name, channel in (deltas or {}).items():
        if not all(hasattr(channel, what) for what in ("from_checkpoint", "replay_writes", "get")):
            raise InvalidConfig(
                f"deltas has {channel!r:.200} for {name!r}: it must be a DeltaChannel with the reducer and the type that the "
                "channel had before the change, such as DeltaChannel(reducer, list)",
                what="deltas",
                value=repr(channel)[:200],
            )
    by_name = {_key(name): channel for name, channel in (deltas or {}).items()}
    return _MapState(_function(function, "function"), None if writes is None else _function(writes, "writes"), by_name)


def _function(given: Function, what: str) -> Function:
    if not callable(given):
        raise InvalidConfig(f"{what} is {given!r}: it must be a function", what=what, value=repr(given)[:200])
    if any(map(inspect.iscoroutinefunction, (given, getattr(given, "__call__", None)))):  # noqa: B004 - not whether
        raise InvalidConfig(
            f"{what} is {given!r}, which is async: it is called while a checkpoint is read, and must be a plain function",
            what=what,
            value=repr(given)[:200],
        )
    return given


def _key(name: object) -> str:
    found = text(name, "name")
    if found in RESERVED - {"__end__"} or found.startswith(BRANCH) or starts_of(found) is not None:
        raise InvalidConfig(
            f"{found!r} is a channel that LangGraph makes by itself: a change speaks of keys of the state, and nodes are "
            "renamed and dropped with rename_node and drop_node",
            what="name",
            value=repr(name)[:200],
        )
    return found


def _node(name: object) -> str:
    found = text(name, "name")
    if found in RESERVED:
        raise InvalidConfig(
            f"{found!r} is no node of the application: where a branch is to end, use drop_node without to=",
            what="name",
            value=repr(name)[:200],
        )
    return found


def text(name: object, what: str) -> str:
    """`name`, if it is one that can be stored. Raises `InvalidConfig`."""
    try:
        found = name if isinstance(name, str) else ""
        found.encode()
    except UnicodeEncodeError:
        found = ""
    if not found:
        raise InvalidConfig(
            f"{what} is {name!r:.200}: it must be text, and not empty", what=what, value=repr(name)[:200]
        )
    return found


def names(given: object, what: str) -> tuple[str, ...]:
    """Several. Text alone is refused: it would be taken for a list of its characters. Raises `InvalidConfig`."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidConfig(
            f"{what} is {given!r:.200}: it must be a list of names, such as [{given!r:.200}]",
            what=what,
            value=repr(given)[:200],
        )
    return tuple(text(one, what) for one in cast("Iterable[object]", given))


def _class_name(text: object) -> ClassName:
    module, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not module or not name:
        raise InvalidConfig(
            f"{text!r} is no class: write it as 'module:Class', such as 'app.models:Order'",
            what="class",
            value=repr(text)[:200],
        )
    return module, name
