"""Copies, restorations and erasures die at every of their calls: a sweep finds what is left, and takes nothing else."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import killing_leftovers
import pytest
from stores import STORES, environment, url_of

SHARED = [store for store in STORES if store != "memory"]


async def _counted(mode: str, store: str, tmp_path: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        killing_leftovers.__file__,
        mode,
        url_of(store, tmp_path),
        str(tmp_path),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return int(out)


@pytest.mark.parametrize("store", SHARED)
@pytest.mark.parametrize(("mode", "least"), [("copy", 8), ("restore", 8), ("erase", 5)])
async def test_killed_at_each_call(mode: str, least: int, store: str, tmp_path: Path) -> None:
    assert await _counted(mode, store, tmp_path) >= least


@pytest.mark.parametrize("store", SHARED)
async def test_another_process_tidies_up_meanwhile(store: str, tmp_path: Path) -> None:
    assert await _counted("race", store, tmp_path) == killing_leftovers.COPIES
