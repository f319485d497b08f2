"""docs/commands.md names every command, and of each every option and no other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from milepost_inspector.cli import parser

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
_, *_SECTIONS = re.split(r"^## (?=milepost )", PAGE.read_text("utf-8"), flags=re.MULTILINE)
SECTIONS = {section.partition("\n")[0]: section for section in _SECTIONS}


def _commands(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Those that can be given, by whatever words."""
    groups = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield one
    for group in groups:
        for command in group.choices.values():
            yield from _commands(command)


COMMANDS = {command.prog: command for command in _commands(parser())}


def test_every_command_has_a_section() -> None:
    assert SECTIONS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_lists_the_options_of_its_command(name: str) -> None:
    listed = set(
        re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(re.findall(r"^\|[^|]*\|", SECTIONS[name], re.MULTILINE)))
    )
    exist = {text for action in COMMANDS[name]._actions for text in action.option_strings if text.startswith("--")}
    denials = {f"--no-{text[2:]}" for text in exist}
    assert listed >= exist - {"--help"} - denials
    assert listed <= exist
