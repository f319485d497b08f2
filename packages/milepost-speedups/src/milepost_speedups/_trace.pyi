from typing import Any, final

@final
class Trace:
    def same(self, messages: list[Any], /) -> bool: ...

def trace(messages: list[Any], classes: frozenset[type], after: Trace | None = None, /) -> Trace | None: ...
