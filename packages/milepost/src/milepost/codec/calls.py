"""What is sealed in a ledger's record, and the keys by which calls are found. Pure computing.

A record has two sealed parts, `call` (who wants what) and `outcome` (what came of it), and a trail of sealed entries.
Each is bound to its thread and key.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from milepost.callstore import CallRow, State
from milepost.errors import Corrupt, InvalidConfig

Part = Literal["call", "outcome", "entry"]

SCHEME: Final = "1"
"""Names the way in which keys are made. Another one would not find the records of this one."""

Checkpoints: TypeAlias = tuple[tuple[str, str], ...]
"""(namespace, checkpoint id) of each."""

LONGEST_HANDLE: Final = 64
"""Characters that a downstream key has at most."""

MAX_KEY: Final = 512
"""Longest key of the user's, in characters."""


class Wording(NamedTuple):
    """What asks for a call, by the fields of `CallInfo`."""

    message: str | None
    call: str | None
    position: int
    apart: str


@dataclass(frozen=True, slots=True)
class CallInfo:
    """The sealed part `call`: what is called, and for whom. Text and numbers, but for the arguments."""

    tool: str
    arguments: Any
    fingerprint: str
    kind: str
    handle: str
    """The downstream key without generation and step. A copied record keeps it: the outside world knows the call by it."""
    tenant: str = ""
    message: str | None = None
    call: str | None = None
    position: int = 0
    apart: str = ""
    """What tells the call from others of the same ids: its fingerprint, where ids are missing or repeated."""
    epoch: str = ""
    own: str | None = None
    """A key of the user's, in the place of the ids."""
    step: str = ""
    """The name of an effect within the call, which has a record of its own; all of the above are the call's then."""
    step_of: int = 0
    """The generation of the call that the step belongs to."""
    human: str = ""
    checkpoints: Checkpoints = ()
    """What the task of the latest attempt started from."""
    earlier: Checkpoints = ()
    """What those of earlier attempts started from whose effect may be the one that stands."""
    claim: int = 0
    """Which entry of the trail is the claim that `checkpoints` are of. (Before there was this field, they were of the
    first one for ever.)"""
    window: float | None = None
    max_duration: float = 0.0
    compensable: bool = False
    former: tuple[Wording, ...] = ()
    """What asked for the call before what does now: it was worded anew, and that took over the record. The first one
    first; empty in records that were taken over by a release that did not keep it."""

    @property
    def first(self) -> CallInfo:
        """As it was before it was worded anew: what belongs to the call, such as its steps, keeps these ids."""
        return self.by(self.former[0]) if self.former else self

    @property
    def wording(self) -> Wording:
        """What asks for the call now."""
        return Wording(self.message, self.call, self.position, self.apart)

    @property
    def asked_by(self) -> tuple[tuple[str | None, str], ...]:
        """(message id, call id) of each wording."""
        return tuple((one.message, one.call or "") for one in (self.wording, *self.former))

    def by(self, wording: Wording) -> CallInfo:
        """The call in these words."""
        return replace(self, **wording._asdict(), former=())

    def pack(self) -> dict[str, Any]:
        """As a dict that leaves out what is as usual."""
        plain = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        packed = {name: value for name, value, default in plain if value != default}
        if self.former:
            packed["former"] = [list(ids) for ids in self.former]
        return packed

    @classmethod
    def unpack(cls, value: object) -> CallInfo:
        """The inverse of `pack`. Unknown keys, of a later release, are left out."""
        if not isinstance(value, Mapping):
            raise Corrupt("a call's record does not make sense", damage="call")
        names = {field.name for field in fields(cls)}
        known = {key: given for key, given in cast("Mapping[str, Any]", value).items() if key in names}
        if "former" in known:
            known["former"] = tuple(Wording(*ids) for ids in known["former"])
        for name in ("checkpoints", "earlier"):
            if name in known:
                known[name] = tuple((ns, id) for ns, id in known[name])
        return cls(**known)


def about_call(thread: str, key: str, part: Part) -> bytes:
    """What the sealed bytes of a record are bound to."""
    return b"call\0" + f"{thread}\0{key}\0{part}".encode("utf-8", "surrogatepass")


# Keys.


def digest(*parts: str | int | None) -> str:
    """43 characters that name `parts`: SHA-256 over their lengths and texts, in the URL-safe alphabet of base64."""
    hasher = hashlib.sha256()
    for part in parts:
        kind = b"-" if part is None else b"i" if isinstance(part, int) else b"s"
        data = b"" if part is None else str(part).encode("utf-8", "surrogatepass")
        hasher.update(kind + len(data).to_bytes(8, "little") + data)
    return base64.urlsafe_b64encode(hasher.digest()).rstrip(b"=").decode()


def call_key(thread: str, info: CallInfo) -> str:
    """The key of a call by its ids, which are all that survives a repetition (see the ledger's documentation), or by a key
    of the user's: that itself, where no tenant and no epoch tell it from others."""
    key = info.own
    if key is not None and (info.tenant or info.epoch):
        key = digest("own", SCHEME, info.tenant, info.epoch, key)
    if key is None:
        message: str | int = info.message if info.message is not None else info.position
        key = digest("call", SCHEME, info.tenant, thread, message, info.call, info.apart, info.epoch)
    return digest("step", SCHEME, key, info.step_of, info.step) if info.step else key


def handle_of_own(thread: str, info: CallInfo, scope: str) -> str:
    """The downstream handle of a key of the user's: the key itself where nothing else can have the same."""
    key = info.own or ""
    if (
        scope == "global"
        and not info.tenant
        and not info.epoch
        and key.isascii()
        and key.isprintable()
        and len(key) <= LONGEST_HANDLE - 8
    ):
        return key
    epoch = (info.epoch,) if info.epoch else ()
    return digest("key", SCHEME, info.tenant, scope, thread if scope == "thread" else None, key, *epoch)


def downstream(handle: str, generation: int, step: str = "") -> str:
    """The key for an API: at most `LONGEST_HANDLE` characters, the same for every attempt."""
    text = f"{handle}:{generation}" + (f":{step}" if step else "")
    return text if len(text) <= LONGEST_HANDLE and text.isascii() else digest("step", text)


def match_of(info: CallInfo) -> str:
    """Equal for calls that may be one call in other words; "" where that cannot be told."""
    if info.own is not None or info.step or not info.human:
        return ""
    return digest("match", SCHEME, info.tenant, info.tool, info.fingerprint, info.human, info.epoch)


def fingerprint(tool: str, arguments: Any) -> str:
    """SHA-256 of the tool's name and of the arguments as canonical JSON, in hex.

    Raises `InvalidConfig`, with the path, for what is not JSON: NaN, keys that are no text, objects.
    """
    _check_json(arguments, "arguments")
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(f"{len(tool)}:{tool}:{text}".encode("utf-8", "surrogatepass")).hexdigest()


def _check_json(value: Any, path: str) -> None:
    kind = type(value)
    if kind in (str, bool, int, type(None)):
        return
    if kind is float:
        if not math.isfinite(value):
            raise _no_json(path, f"{value!r} is not a number of JSON")
    elif kind in (list, tuple):
        for at, item in enumerate(value):
            _check_json(item, f"{path}[{at}]")
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise _no_json(path, f"the key {key!r} is of type {type(key).__name__}, not text")
            _check_json(item, f"{path}[{key!r}]")
    else:
        raise _no_json(path, f"a value of type {kind.__module__}.{kind.__qualname__} is not JSON")


def _no_json(path: str, problem: str) -> InvalidConfig:
    return InvalidConfig(
        f"a call cannot be recognised by its arguments: at {path}, {problem}. Declare fingerprint=… for the tool: a "
        "function from the arguments to the part of them, as JSON, that two equal calls share",
        what=path,
    )


def moved(
    row: CallRow,
    source: str,
    target: str,
    unseal: Callable[[bytes, bytes], Any],
    seal: Callable[[Any, bytes], bytes],
) -> CallRow:
    """`row` of thread `source` for its copy `target`: found by what the copy will ask for, in all its wordings, known
    outside by its old handle. Who was performing it does so for the source; for the copy its outcome is unknown."""

    def over(data: bytes, part: Part) -> bytes:
        return seal(unseal(data, about_call(source, row.key, part)), about_call(target, key, part)) if data else b""

    info = CallInfo.unpack(unseal(row.call, about_call(source, row.key, "call")))
    key = call_key(target, info)
    state: State = "in_doubt" if row.state == "started" else row.state
    aliases = dict.fromkeys(call_key(target, info.by(wording)) for wording in info.former)
    note = f"copied from thread {source!r}"
    copied = seal([state, row.generation, row.attempt, row.updated, "copy", note], about_call(target, key, "entry"))
    return replace(
        row,
        thread=target,
        key=key,
        state=state,
        revision=row.revision + 1,
        call=over(row.call, "call"),
        outcome=over(row.outcome, "outcome"),
        aliases=tuple(alias for alias in aliases if alias != key),
        trail=(*(over(entry, "entry") for entry in row.trail), copied),
    )
