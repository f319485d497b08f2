"""What a port of the Redis store is asked for."""

from __future__ import annotations

from typing import NamedTuple

from milepost_redis.scripts import Script

Reply = list["Reply"] | bytes | int | None
"""What a server answers: nested lists of bytes, whole numbers and nothing."""


class Call(NamedTuple):
    """One script, with its keys (all of one slot) and arguments."""

    script: Script
    keys: tuple[bytes, ...]
    arguments: tuple[bytes, ...]

    def words(self, *, whole: bool = False) -> tuple[bytes, ...]:
        """The command: by the script's digest, or with its text."""
        verb = (b"EVAL", self.script.text) if whole else (b"EVALSHA", self.script.sha)
        return (*verb, b"%d" % len(self.keys), *self.keys, *self.arguments)


class Command(NamedTuple):
    """One plain command."""

    arguments: tuple[bytes, ...]

    def words(self, *, whole: bool = False) -> tuple[bytes, ...]:
        del whole
        return self.arguments


Step = Call | Command


class Request(NamedTuple):
    """One or more commands that are sent together, and may be repeated together. Each is atomic for itself."""

    op: str
    steps: tuple[Step, ...]
    writes: bool = False
    """Whether the answer has to wait for what the option `durability` asks for."""
    together: bool = False
    """Whether it is small, in what is sent and in what is answered, and may go with others."""
