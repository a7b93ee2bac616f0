"""A PostgreSQL server that the tests start, stop, crash and delete themselves."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 60.0
STOP_SECONDS = 60.0
USER = "feddp"


def find_programs() -> Path | None:
    """The folder of initdb and postgres: on the path, or Debian's newest."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


def unprivileged() -> pwd.struct_passwd | None:
    """Whom the server runs as when the tests run as root, whom it refuses."""
    if os.geteuid() != 0:
        return None
    users = {user.pw_name: user for user in pwd.getpwall()}
    return users.get("postgres") or users["nobody"]


def skip_or_fail(reason: str) -> None:
    """Skips the test; fails it where continuous integration must not go without."""
    if os.environ.get("FEDDP_REQUIRE_POSTGRESQL") or os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Server:
    """One cluster in a folder of its own, reached by a Unix socket alone."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._free: list[str] = []
        # The server goes when its parent goes, even by kill -9.
        self._as_user = ["setpriv", "--pdeathsig", "QUIT"]
        if (user := unprivileged()) is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as_user += ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
        arguments = ["-D", str(folder / "data"), "-U", USER, "--auth=trust", "--encoding=UTF8", "--no-locale"]
        subprocess.run(
            [*self._as_user, str(programs / "initdb"), "--no-sync", *arguments], check=True, stdout=subprocess.DEVNULL
        )

    def start(self, *settings: str) -> None:
        """Starts it, with settings such as ``fsync=off``, and returns when it answers."""
        options = ["listen_addresses=", f"unix_socket_directories={self.folder}", *settings]
        command = [str(self.programs / "postgres"), "-D", str(self.folder / "data")]
        command += [text for option in options for text in ("-c", option)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user, *command], cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.execute("postgres", "SELECT 1")
                return
            except Exception:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()) from None
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends it at once, as a crash would; it recovers when it starts again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(STOP_SECONDS)
            self._process = None

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}"

    def execute(self, database: str, statement: str) -> None:
        """Runs one statement outside any transaction."""
        import psycopg

        with psycopg.connect(host=str(self.folder), dbname=database, user=USER, autocommit=True) as connection:
            connection.execute(statement.encode())

    def lend_database(self) -> str:
        """An empty database, until it is given back."""
        if self._free:
            return self._free.pop()
        self._databases += 1
        name = f"ledger_{self._databases}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return name

    def give_back(self, name: str) -> None:
        """Empties a database, which takes a tenth of the time that a new one would."""
        self.execute("postgres", f"ALTER DATABASE {name} RESET ALL")
        self.execute(name, "DROP SCHEMA public CASCADE")
        self.execute(name, "CREATE SCHEMA public")
        self._free.append(name)


@contextmanager
def running_server() -> Iterator[Server]:
    """A server for the tests of a session, gone with all its data at the end."""
    programs = find_programs()
    if programs is None or shutil.which("setpriv") is None:
        skip_or_fail("PostgreSQL is not installed: apt-get install postgresql")
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="feddp-postgresql-"))
    try:
        server = Server(programs, folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
