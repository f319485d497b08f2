from collections.abc import Callable
from typing import Any, Protocol, Self, final

class Revival(Protocol):
    @property
    def degraded(self) -> int: ...
    def hook(self, code: int, data: bytes, /) -> Any: ...
    def finish(self, code: int, data: bytes, parts: Any, degraded: int, /) -> Any: ...
    def fail(self, exc: BaseException, /) -> None: ...

@final
class Hook:
    def __call__(self, code: int, data: bytes, /) -> Any: ...

class Messages:
    def __new__(
        cls,
        shapes: list[tuple[type, str, str, tuple[str, ...], str, bytes]],
        unpackb: Callable[..., Any],
        option: int,
        given: object,
        extra: object,
        private: object,
        /,
    ) -> Self: ...
    def hook(self, revival: Revival, /) -> Hook: ...
    def read(self, items: list[bytes], texts: dict[int, str] | None, /) -> tuple[list[Any], list[int]] | None: ...
