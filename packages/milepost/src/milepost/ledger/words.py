"""What exceptions of the application's say. Its classes may be at fault themselves: nothing here raises because of that."""

from __future__ import annotations


def words(error: BaseException) -> str:
    """Its class and its text."""
    name, said = type(error).__name__, text(error)
    return f"{name}: {said}" if said else name


def text(error: BaseException) -> str:
    """``str(error)``."""
    try:
        return str(error)
    except Exception as exc:
        return f"its text is not known, as its __str__ raised {type(exc).__name__}"


def shown(error: BaseException) -> str:
    """``repr(error)``."""
    try:
        return repr(error)
    except Exception:
        return words(error)
