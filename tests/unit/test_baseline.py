"""Records of releases: which differences are accounted for by which declarations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import pytest
from milepost import schema as ms
from milepost.schema import Change, Release, Schema, Schemas, Shape, Step, compare
from milepost.schema.schema import Where
from milepost.schema.shape import Drift, drift
from milepost.schema.stamps import Stamp, encode
from typing_extensions import TypedDict

HOME = __name__.partition(".")[0]
T = TypeVar("T")


def _lies(module: str, name: str) -> Callable[[type[T]], type[T]]:
    """Gives a class another place."""

    def moved(cls: type[T]) -> type[T]:
        cls.__module__, cls.__qualname__ = f"{HOME}.{module}", name
        return cls

    return moved


@_lies("one", "Order")
@dataclasses.dataclass
class One:
    n: int


@_lies("two", "Order")
@dataclasses.dataclass
class Two:
    n: int


@_lies("two", "Wider")
@dataclasses.dataclass
class Wider:
    n: int
    more: str


def _basket(orders: Any) -> type:
    return _lies("three", "Basket")(dataclasses.make_dataclass("Basket", [("orders", orders)]))


def _state(**fields: Any) -> Any:
    return TypedDict("State", fields)  # type: ignore[operator]  # mypy wants a literal


def _release(version: int, fields: Mapping[str, Any], *changes: Change) -> Release:
    upgrades = [Step(1, 2, *changes)] if version == 2 else []
    return Release.of(Schemas(Schema(_state(**fields), version=version, name="s", upgrades=upgrades)))


def _problems(before: Release, after: Release) -> str:
    return "\n".join(map(str, compare(Release.load(before.dump()), after)))


def test_a_class_that_moved_within_the_package_is_seen() -> None:
    before, after = _release(1, {"o": list[One]}), _release(1, {"o": list[Two]})
    assert f"channel 'o' was list[{HOME}.one:Order(n: int)]" in _problems(before, after)
    (found,) = compare(before, after)
    moved = f"rename_class('{HOME}.one:Order', '{HOME}.two:Order')"
    assert moved in found.draft
    assert "map_channel" not in found.draft
    assert _problems(before, _release(2, {"o": list[Two]}, ms.rename_class(f"{HOME}.one:Order", Two))) == ""
    assert Shape.of(_state(o=One)).fingerprint != Shape.of(_state(o=Two)).fingerprint


RENAMED = ms.rename_class(f"{HOME}.one:Order", Wider)


@pytest.mark.parametrize(
    ("was", "now", "accounted"),
    [
        (One, Wider, True),
        (dict[str, list[One]], dict[str, list[Wider]], True),
        # Where it stands among the types of a union is no difference.
        (One | str | None, Wider | str | None, True),
        (_basket(list[One]), _basket(list[Wider]), True),
        (int, str, False),
        (list[One], tuple[Wider], False),
        (One, Wider | None, False),
        (One, Annotated[Wider, max], False),
        (One, Two, False),
    ],
)
def test_a_renamed_class_accounts_for_itself_alone(was: Any, now: Any, accounted: bool) -> None:
    before, after = _release(1, {"o": was, "p": One}), _release(2, {"o": now, "p": Wider}, RENAMED)
    found = _problems(before, after)
    assert ("channel 'o' was" in found) != accounted
    assert "'p'" not in found


def test_two_classes_that_one_takes_the_place_of() -> None:
    changes = [ms.rename_class("gone:Order", Wider), RENAMED]
    before = json.loads(_release(1, {"o": One, "p": One}).dump())
    before["namespaces"][""]["channels"] = {"o": "gone:Order(n: int)", "p": f"{HOME}.one:Order(n: int)"}
    after = _release(2, {"o": Wider, "p": Wider}, *changes)
    assert _problems(Release.load(json.dumps(before)), after) == ""


def test_a_subgraph_within_a_subgraph_is_known_by_both_nodes() -> None:
    state = _state(a=int)
    shape = Shape.of(state)

    def release(outer: str, inner: str, *changes: Change, within: tuple[Change, ...] = ()) -> Release:
        def schema(made: tuple[Change, ...]) -> Schema:
            return Schema(state, version=2, name="s", upgrades=[Step(1, 2, *made)])

        spaces = {"": [outer], outer: [inner], f"{outer}|{inner}": ["n"]}
        made = Schemas({"": schema(changes), outer: schema(within), f"{outer}|{inner}": schema(())})
        return Release.of(made, {ns: ("s", shape, nodes) for ns, nodes in spaces.items()})

    text = release("p", "q").dump().replace('"version": 2', '"version": 1')
    before, rename = Release.load(text), ms.rename_node
    assert compare(before, release("P", "Q", rename("p", "P"), within=(rename("q", "Q"),))) == []
    assert compare(before, release("P", "q", ms.drop_node("p", to="P"))) == []
    assert [one.ns for one in compare(before, release("P", "Q", rename("p", "P")))] == ["P", "p|q"]
    # The record of what is called so now is another one's.
    assert [one.ns for one in compare(before, release("P", "q"))] == ["", "p", "p|q"]


# Records and stamps from before paths were whole.


def _former(release: Release) -> Release:
    facts = {"name": "s", "version": 1, "channels": dict(release.records[""].former)}
    return Release.load(json.dumps({"format": 1, "namespaces": {"": facts}}))


def test_a_record_of_the_first_format_is_compared_by_its_own_words() -> None:
    fields = {"o": One, "p": list[Two]}
    before = _former(_release(1, fields))
    assert before.records[""].channels["o"] == f"{HOME}:Order(n: int)"
    assert compare(before, _release(1, fields)) == []
    assert "'p' was" in str(compare(before, _release(1, {"o": One, "p": Two}))[0])
    assert compare(before, _release(2, {"o": Wider, "p": list[Two]}, RENAMED)) == []


def test_a_stamp_from_before_paths_were_whole_is_no_drift() -> None:
    fields = {"o": One, "p": int}
    shape, other = Shape.of(_state(**fields)), Shape.of(_state(o=One, p=str))
    before, now = Shape(shape.former, {}), Shape(other.channels, other.former)
    stamp = encode(Stamp("s", 1, 1, before.fingerprint, before.table))[0]
    where = Where("t", "", "01")
    assert Schema(_state(**fields), version=1, name="s").judge(stamp, where).table is None
    table = Schema(_state(o=One, p=str), version=1, name="s").judge(stamp, where).table
    assert table is not None
    assert drift(now, table, ["o", "p"]) == Drift((), (), ("p",))
