"""Maintenance dies at every of its calls, or meets a run of another process: nothing that stays is ever another thing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import killing_upkeep
import pytest
from stores import STORES, environment, url_of

SHARED = [store for store in STORES if store != "memory"]


async def _counted(mode: str, store: str, tmp_path: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        killing_upkeep.__file__,
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
async def test_killed_at_each_call(store: str, tmp_path: Path) -> None:
    assert await _counted("kills", store, tmp_path) >= 12


@pytest.mark.parametrize("store", SHARED)
async def test_a_run_of_another_process_goes_on_meanwhile(store: str, tmp_path: Path) -> None:
    assert await _counted("race", store, tmp_path) >= 6
