"""The outside world: a process that performs effects and writes each of them to its own log.

One JSON line in, one JSON line out, over TCP on 127.0.0.1. An effect is answered when its log line is on disk; the
lines of effects that arrive together share one sync.

    {"op": "effect", "id": "RF-000001", "run": 1, "payload": {...}}  ->  {"attempt": 1}
    {"op": "count"}                                                  ->  {"distinct": 1, "effects": 1}
    {"op": "find", "id": "RF-000001"}                                ->  {"effects": 1}

An effect may carry a `key`. The first of a key is performed; for another of the same key and payload the answer of the
first is given again, and nothing is performed. Another payload under a known key is refused: {"refused": 1}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from milepost_inspector.demo.records import checksum

MAX_LINE = 1 << 20


class World:
    """Performs effects: counts them, and logs them to `log`."""

    def __init__(self, log: Path) -> None:
        self._fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._seen: Counter[str] = Counter()
        self._keys: dict[str, tuple[str, asyncio.Task[dict[str, int]]]] = {}
        self._effects = 0
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._more = asyncio.Event()

    async def serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Answer one connection until its end. A client that is killed in the middle of a line is no error."""
        try:
            while line := await client_in.readline():
                if not line.endswith(b"\n"):
                    break
                client_out.write(json.dumps(await self._answer(json.loads(line))).encode() + b"\n")
                await client_out.drain()
        except ConnectionError:
            pass
        finally:
            client_out.close()
            with contextlib.suppress(ConnectionError):
                await client_out.wait_closed()

    async def _answer(self, request: Mapping[str, Any]) -> dict[str, int]:
        if request["op"] == "count":
            return {"distinct": len(self._seen), "effects": self._effects}
        if request["op"] == "find":
            return {"effects": self._seen[request["id"]]}
        total, key = checksum(request["payload"]), request.get("key")
        if key is None:
            return await self._perform(request, total)
        if key not in self._keys:
            self._keys[key] = total, asyncio.ensure_future(self._perform(request, total))
        first, answer = self._keys[key]
        # A client that goes away must not take the answer from another that waits for it.
        return await asyncio.shield(answer) if first == total else {"refused": 1}

    async def _perform(self, request: Mapping[str, Any], total: str) -> dict[str, int]:
        self._effects += 1
        self._seen[request["id"]] += 1
        attempt = self._seen[request["id"]]
        line = {"id": request["id"], "sum": total, "run": request["run"], "attempt": attempt}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((json.dumps(line).encode() + b"\n", done))
        self._more.set()
        await done
        return {"attempt": attempt}

    async def write(self) -> None:
        """Write what waits, over and over. A log that cannot be written ends the world."""
        while True:
            await self._more.wait()
            self._more.clear()
            batch, self._waiting = self._waiting, []
            await asyncio.to_thread(self._append, b"".join(line for line, _ in batch))
            for _, done in batch:
                if not done.done():
                    done.set_result(None)

    def _append(self, lines: bytes) -> None:
        while lines:
            lines = lines[os.write(self._fd, lines) :]
        os.fsync(self._fd)


def ask(port: int, request: Mapping[str, Any], timeout: float = 30.0) -> dict[str, int]:
    """Send one request to the world on `port` and return its answer. Raises ``OSError`` when it cannot be reached."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as replies:
            line = replies.readline(MAX_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("the outside world closed the connection without an answer")
    answer: dict[str, int] = json.loads(line)
    return answer


async def _main(log: Path) -> None:
    world = World(log)
    server = await asyncio.start_server(world.serve, "127.0.0.1", 0, limit=MAX_LINE)
    print(server.sockets[0].getsockname()[1], flush=True)
    parent_gone = asyncio.create_task(asyncio.to_thread(sys.stdin.buffer.read))
    writer = asyncio.create_task(world.write())
    # Standard input ends when the conductor closes it or is gone, however it went.
    done, _ = await asyncio.wait({parent_gone, writer}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    # Not a return: that would wait for open connections, and for the thread that reads standard input.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
