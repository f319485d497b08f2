"""Every Python block of the README and the documentation runs, page by page, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import subjects
from milepost.testing import servers, servers_redis
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = "```python\n"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if FENCE in page.read_text("utf-8")], ids=lambda page: page.stem
)
def test_the_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_URL", "memory:")  # so that what a page sets is undone after it
    if page.stem in ("postgres", "ledger"):
        monkeypatch.setenv("DATABASE_URL", subjects.required(servers.postgres_url))
    if page.stem == "redis":
        monkeypatch.setenv("REDIS_URL", subjects.required(servers_redis.redis_url))
    examples = list(Sybil(parsers=[PythonCodeBlockParser()], path=str(page.parent)).parse(page))
    assert len(examples) == page.read_text("utf-8").count(FENCE)
    for example in examples:
        example.evaluate()


def test_the_pages_that_teach_by_code_have_code() -> None:
    taught = {page.stem for page in PAGES if FENCE in page.read_text("utf-8")}
    assert taught >= {
        "README",
        "leases",
        "ledger",
        "retention",
        "quickstart",
        "values",
        "guarantees",
        "configuration",
        "postgres",
        "redis",
        "schema",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_link_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).is_file(), target
