from typing import Any

def numbered(
    names: dict[str, int], versions: object, seen: object, /
) -> tuple[list[Any], list[int], dict[str, list[int]]] | None: ...
