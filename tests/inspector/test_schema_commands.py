"""``milepost schema check``, ``schema scan`` and ``migrate``, as a person or CI runs them."""

from __future__ import annotations

import itertools
import json
import os
import pty
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import milepost
import pytest
from milepost.migrating import Migrated
from milepost.saver import Saver
from milepost.schema import Schema
from milepost_inspector.cli import main
from typing_extensions import TypedDict

_numbers = itertools.count()

GRAPH = """
from typing import Annotated
import operator
import milepost
from milepost.schema import *
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

class State(TypedDict, total=False):
    {fields}

class Child(TypedDict, total=False):
    inner: int

schema = milepost.Schema(State, version={version}, name="State", upgrades={upgrades}, unstamped={unstamped})
child = StateGraph(Child).add_node("in", lambda _: {{}}).add_edge(START, "in").compile()
graph = (
    StateGraph(State)
    .add_node("{node}", lambda _: {{}})
    .add_node("{child}", child)
    .add_edge(START, "{node}")
    .compile()
)
made = lambda: graph
saver = milepost.connect("file:./store", schema=schema)
"""

Write = Callable[..., str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a release of the application, and returns the name of its module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(
        fields: str = "a: int; b: str",
        version: int = 1,
        upgrades: str = "[]",
        node: str = "ask",
        unstamped: str = "None",
        child: str = "child",
    ) -> str:
        name = f"release_{next(_numbers)}"
        text = GRAPH.format(
            fields=fields, version=version, upgrades=upgrades, node=node, unstamped=unstamped, child=child
        )
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        return name

    return write


def _check(module: str, *more: str) -> int:
    return main(["schema", "check", f"{module}:graph", "--schema", f"{module}:schema", "--baseline", "b.json", *more])


def test_the_first_record(module: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = module()
    assert _check(name) == 2
    assert "--update" in capsys.readouterr().err
    assert _check(name, "--update") == 0
    found = json.loads(Path("b.json").read_text("utf-8"))
    assert found["namespaces"][""] == {
        "name": "State",
        "version": 1,
        "channels": {"a": "int", "b": "str"},
        "nodes": ["ask", "child"],
    }
    assert found["namespaces"]["child"]["channels"] == {"inner": "int"}
    assert _check(name) == 0


@pytest.mark.parametrize(
    ("fields", "node", "said", "draft"),
    [
        ("a: int; c: str", "ask", "'b' vanished", "rename_channel('b', 'c')"),
        ("a: int", "ask", "'b' vanished", "drop_channel('b')"),
        ("a: int; b: str; c: list[str]", "ask", "'c' appeared", "add_channel('c', ...)"),
        ("a: int; c: str; d: str", "ask", "'c' appeared", "Or is it 'b', renamed?"),
        ("a: str; b: str", "ask", "'a' was int and is str", "map_channel('a', ...)"),
        (
            "a: Annotated[int, operator.add]; b: str",
            "ask",
            "'a' was int and is int by operator:add",
            "map_channel('a', ...)",
        ),
        ("a: int; b: str", "approve", "node 'ask' vanished", "rename_node('ask', 'approve')"),
    ],
)
def test_what_changed_and_was_not_declared(
    module: Write, capsys: pytest.CaptureFixture[str], fields: str, node: str, said: str, draft: str
) -> None:
    assert _check(module(), "--update") == 0
    before = Path("b.json").read_text("utf-8")
    assert _check(module(fields, node=node), "--update", "--draft", "draft.py") == 1
    told = capsys.readouterr().out
    assert said in told
    assert "the version is still 1" in told
    assert draft in Path("draft.py").read_text("utf-8")
    assert Path("b.json").read_text("utf-8") == before
    # A version alone is not enough.
    assert _check(module(fields, version=2, node=node)) == 1
    told = capsys.readouterr().out
    assert "no upgrades lead from version 1 to 2" in told
    assert draft in told
    assert _check(module(fields, version=2, node=node, upgrades="[Step(1, 2)]")) == 1
    assert "no upgrade" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "node", "change"),
    [
        ("a: int; c: str", "ask", "rename_channel('b', 'c')"),
        ("a: int", "ask", "drop_channel('b')"),
        ("a: int; b: str; c: list[str]", "ask", "add_channel('c', [])"),
        ("a: str; b: str", "ask", "map_channel('a', str)"),
        ("c: str; b: str", "ask", "map_channel('a', str), rename_channel('a', 'c')"),
        ("a: int; b: str", "approve", "rename_node('ask', 'approve')"),
        ("a: int; b: str", "other", "drop_node('ask', to='other')"),
        ("x: bytes", "ask", "map_state(dict)"),
        ("x: bytes", "other", "map_state(dict), rename_node('ask', 'other')"),
    ],
)
def test_what_was_declared(module: Write, fields: str, node: str, change: str) -> None:
    assert _check(module(), "--update") == 0
    name = module(fields, version=2, node=node, upgrades=f"[Step(1, 2, {change})]")
    assert _check(name, "--update") == 0
    assert json.loads(Path("b.json").read_text("utf-8"))["namespaces"][""]["version"] == 2
    assert _check(module()) == 1


@pytest.mark.parametrize(
    ("child", "change", "code"),
    [
        ("young", "rename_node('child', 'young')", 0),
        ("young", "rename_node('child', 'kid'), drop_node('kid', to='young')", 0),
        ("young", "drop_node('child', to='young')", 0),
        ("young", "drop_node('child')", 0),
        ("young", "rename_node('child', 'other')", 1),
        ("young", "map_state(dict)", 1),
        ("child", "drop_node('child', to='ask')", 0),
    ],
)
def test_a_subgraph_is_known_by_what_became_of_its_node(
    module: Write, capsys: pytest.CaptureFixture[str], child: str, change: str, code: int
) -> None:
    assert _check(module(), "--update") == 0
    capsys.readouterr()
    assert _check(module(version=2, upgrades=f"[Step(1, 2, {change})]", child=child), "--update") == code
    assert ("namespace 'child':\n  - it is gone" in capsys.readouterr().out) == bool(code)
    assert ("young" in Path("b.json").read_text("utf-8")) == (not code and child == "young")


def test_a_node_that_vanished_is_not_accounted_for_by_what_happens_to_the_state(
    module: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _check(module(), "--update") == 0
    assert _check(module("x: bytes", version=2, node="other", upgrades="[Step(1, 2, map_state(dict))]")) == 1
    told = capsys.readouterr().out
    assert "node 'ask' vanished" in told
    assert "channel" not in told.partition("A draft")[0]


def test_the_nodes_that_a_schema_lists_are_those_of_the_graph(
    module: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = module()
    Path("listed.py").write_text(
        f"from milepost import Schema\nfrom {name} import State, graph\n"
        "right, less, more = (Schema(State, version=1, name='State', nodes=nodes) for nodes in "
        "(graph.nodes, ['ask'], ['ask', 'child', 'other']))\n",
        "utf-8",
    )
    assert main(["schema", "check", "listed:right", "--baseline", "b.json", "--update"]) == 0
    assert json.loads(Path("b.json").read_text("utf-8"))["namespaces"][""]["nodes"] == ["ask", "child"]
    for schema, said in (("right", ""), ("less", "not list: 'child'"), ("more", "not have: 'other'")):
        arguments = ["schema", "check", f"{name}:graph", "--schema", f"listed:{schema}", "--baseline", "b.json"]
        assert main(arguments) == bool(said)
        assert said in capsys.readouterr().out
    # Without a graph, too.
    assert main(["schema", "check", "listed:less", "--baseline", "b.json"]) == 1
    assert "node 'child' vanished" in capsys.readouterr().out


def test_graphs_and_schemas_in_other_forms(module: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = module()
    for target in (f"{name}:made", f"{name}:schema", f"{name}:saver"):
        path = Path(f"{target.partition(':')[2]}.json")
        assert main(["schema", "check", target, "--baseline", str(path), "--update"]) == 0
        assert main(["schema", "check", target, "--baseline", str(path)]) == 0
    # Without a schema, a change asks for one.
    changed = module("a: int")
    assert main(["schema", "check", f"{changed}:made", "--baseline", "made.json"]) == 1
    assert "declare a milepost.Schema" in capsys.readouterr().out
    # And where there was none, it has to be said what was there.
    upgrades = "[Step(1, 2, drop_channel('b'))]"
    for unstamped, code in (("None", 1), ("1", 0)):
        later = module("a: int", version=2, upgrades=upgrades, unstamped=unstamped)
        arguments = ["schema", "check", f"{later}:made", "--schema", f"{later}:schema", "--baseline", "made.json"]
        assert main(arguments) == code


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nosuch:x", "ModuleNotFoundError: No module named 'nosuch'"),
        ("json:x", "no 'x' in 'json'"),
        ("json", "module:name"),
        ("json:JSONDecoder", "compiled graph"),
        ("broken:x", "'broken' cannot be imported: ZeroDivisionError: division by zero ("),
        ("garbled:x", "'garbled' cannot be imported: SyntaxError"),
        ("raising:make", "calling 'raising:make' without arguments raised ValueError: on purpose ("),
        ("raising:needs", "raised TypeError: needs() missing 1 required"),
    ],
)
def test_what_names_nothing(module: Write, capsys: pytest.CaptureFixture[str], target: str, said: str) -> None:
    module()
    Path("broken.py").write_text("1 / 0\n", "utf-8")
    Path("garbled.py").write_text("def (:\n", "utf-8")
    Path("raising.py").write_text("def make():\n    raise ValueError('on purpose')\ndef needs(one): ...\n", "utf-8")
    assert main(["schema", "check", target, "--baseline", "b.json"]) == 2
    assert said in capsys.readouterr().err


def test_a_record_that_cannot_be_read_or_written(module: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = module()
    Path("binary.json").write_bytes(b"\xff\xfe")
    for path, said in (
        (".", "the baseline . cannot be read"),
        ("binary.json", "cannot be read"),
        ("no/b.json", "written"),
    ):
        arguments = ["schema", "check", f"{name}:schema", "--baseline", path, "--update"]
        assert main(arguments) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 3, "namespaces": {}}', '{"format": 1, "namespaces": []}'])
def test_a_record_that_is_none(module: Write, capsys: pytest.CaptureFixture[str], text: str) -> None:
    name = module()
    Path("b.json").write_text(text, "utf-8")
    assert _check(name) == 2
    told = capsys.readouterr().err
    assert "baseline" in told
    assert "Error(" not in told


class _Any(TypedDict, total=False):
    a: int
    b: str


def _store() -> None:
    for thread, schema in (
        ("one", Schema(_Any, version=1, name="State")),
        ("two", Schema(_Any, version=1, name="State")),
        ("other", Schema(_Any, version=9, name="State")),
        ("none", None),
    ):
        with milepost.connect("file:./store", schema=schema) as saver:
            checkpoint = {
                "v": 4,
                "id": "1",
                "ts": "",
                "channel_values": {"a": 1, "b": "x"},
                "channel_versions": {"a": 1, "b": 1},
                "versions_seen": {},
            }
            config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            saver.put(config, checkpoint, {"step": 1}, {"a": 1, "b": 1})  # type: ignore[arg-type]  # dicts like those


def test_looking_creates_no_store(module: Write, capsys: pytest.CaptureFixture[str]) -> None:
    schema = ["--url", "file:./none", "--schema", f"{module()}:schema"]
    for command in (["schema", "scan"], ["migrate", "--dry-run"], ["migrate"], ["migrate", "--finalise"]):
        assert main([*command, *schema]) == 2
        assert "there is no file store" in capsys.readouterr().err
    assert not Path("none").exists()


def test_a_thread_that_is_not_there(module: Write, capsys: pytest.CaptureFixture[str]) -> None:
    _store()
    schema = ["--url", "file:./store", "--schema", f"{module()}:schema"]
    for command in (["schema", "scan"], ["migrate"]):
        assert main([*command, *schema, "--thread", "one", "--thread", "nope"]) == 2
        assert "there is no thread 'nope'" in capsys.readouterr().err


def test_scan_and_migrate(module: Write, capsys: pytest.CaptureFixture[str]) -> None:
    _store()
    name = module("a: int", version=2, upgrades="[Step(1, 2, drop_channel('b'))]")
    store = ["--url", "file:./store", "--schema", f"{name}:schema"]
    assert main(["schema", "scan", "--url", "file:./store"]) == 0
    told = capsys.readouterr().out
    assert "State 1: 2 threads" in told
    assert "no schema: 1 threads" in told
    assert main(["schema", "scan", *store, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["outdated"] == 2
    assert found["versions"]["State 9"] == {"threads": 1, "checkpoints": 1}
    assert found["refused"].keys() == {"other", "none"}
    assert main(["migrate", *store, "--dry-run"]) == 1
    assert "2 checkpoints of 2 threads to be rewritten; 2 threads refused" in capsys.readouterr().out
    # The saver that the schema's name leads to knows the store.
    assert main(["migrate", "--schema", f"{name}:saver", "--thread", "one"]) == 0
    assert "1 checkpoints of 1 threads rewritten" in capsys.readouterr().out
    for mode, code, said in (
        ("--undo", 0, "1 checkpoints of 1 threads put back"),
        ("--dry-run", 1, "2 checkpoints of 2 threads to be"),
        ("--history", 1, "2 checkpoints of 2 threads rewritten; 2"),
        ("--finalise", 0, "2 checkpoints of 2 threads removed"),
        ("--dry-run", 1, "0 checkpoints of 0 threads"),
    ):
        assert main(["migrate", *store, mode]) == code
        assert said in capsys.readouterr().out
    assert main(["schema", "scan", *store, "--thread", "one"]) == 0
    assert "nothing is left to be upgraded" in capsys.readouterr().out
    with milepost.connect("file:./store", schema=Schema(_Any, version=2, name="State")) as saver:
        kept = saver.get_tuple({"configurable": {"thread_id": "two"}})
        assert kept is not None
        assert kept.checkpoint["channel_values"] == {"a": 1}


def test_a_migration_that_is_stopped_goes_on_from_its_cursor(
    module: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _store()
    name = module("a: int", version=2, upgrades="[Step(1, 2, drop_channel('b'))]", unstamped="1")
    arguments = ["migrate", "--url", "file:./store", "--schema", f"{name}:schema", "--json", "--cursor", "far.json"]
    migrate = Saver.migrate
    seen: list[str] = []

    def stopped(saver: Saver, *given: Any, **options: Any) -> Iterator[Migrated]:
        for told in migrate(saver, *given, **options):
            if len(seen) == 1:
                raise KeyboardInterrupt
            seen.append(told.thread)
            yield told

    with monkeypatch.context() as patch:
        patch.setattr(Saver, "migrate", stopped)
        assert main(arguments) == 130
    told = capsys.readouterr().out.splitlines()
    assert main([*arguments, "--history"]) == 2
    assert "another migration" in capsys.readouterr().err
    # What was refused before it was stopped counts.
    assert main(arguments) == 1
    told += capsys.readouterr().out.splitlines()
    facts = {(one := json.loads(line))["thread"]: one for line in told}
    assert len(facts) == len(told) == 4
    assert json.loads(told[0])["thread"] == seen[0]
    other = facts["other"]
    assert other["stored"] == [{"schema": "State", "version": 9, "checkpoints": 1}]
    assert "version 9" in other["refused"][0]
    assert not Path("far.json").exists()
    Path("far.json").write_text("{}", "utf-8")
    for more, said in (([], "--cursor"), (["--thread", "one"], "--thread")):
        assert main([*arguments, *more]) == 2
        assert said in capsys.readouterr().err


def _shown(leader: int) -> str:
    """All that is written to a terminal, until nobody has it open any more."""
    parts: list[bytes] = []
    with os.fdopen(leader, "rb", buffering=0) as screen, suppress(OSError):
        while part := screen.read(1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def test_a_bar_on_a_terminal_and_the_report_in_a_file(module: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    _store()
    name = module("a: int", version=2, upgrades="[Step(1, 2, drop_channel('b'))]")
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with ThreadPoolExecutor(1) as reader, Path("report.txt").open("w+", encoding="utf-8") as report:
        screen = reader.submit(_shown, leader)
        with os.fdopen(follower, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            patch.setattr(sys, "stdout", report)
            code = main(["migrate", "--url", "file:./store", "--schema", f"{name}:schema", "--dry-run"])
        shown = screen.result()
        report.seek(0)
        told = report.read()
    assert code == 1
    assert "100%" in shown
    assert "1 checkpoints" not in shown
    assert "two: 1 checkpoints to be rewritten, 0 refused; 1 of State 1\n" in told
    assert "other: 0 checkpoints to be rewritten, 1 refused; 1 of State 9\n" in told
    assert "%" not in told
