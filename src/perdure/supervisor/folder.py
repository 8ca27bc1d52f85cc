"""The folder of a job on this machine: its journal, its token, where its controller is. Private to the user.

| file | what |
|---|---|
| ``journal.sqlite`` | states and facts (`perdure.supervisor.journal`) |
| ``token`` | the secret that launchers, controller and tools share |
| ``spec.json`` | what the next controller is started with |
| ``controller.json`` | where the controller of the highest term listens |
| ``controller.lock`` | held by the one controller that may write here |
| ``controller.log`` | what it printed |
| ``verdicts.jsonl`` | what the watcher has found, with its evidence |
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

import msgspec

from perdure.errors import CallError, StorageError

__all__ = ["JobFolder", "Whereabouts", "jobs_in"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a controller listens."""

    host: str
    port: int
    term: int
    pid: int
    machine: str
    "The boot of its machine: on another the pid means nothing."


class JobFolder:
    """The folder of job ``name`` below ``home``; `make` makes it."""

    def __init__(self, home: Path, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise CallError(
                f"a job cannot be called {name!r}: letters, digits, dot, dash and underscore, at most 128 of them"
            )
        self.name = name
        self.path = home / name

    def make(self) -> None:
        """Make it, with mode 0700, if it is not there. Raises `StorageError` if others could read or replace it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            facts = os.lstat(self.path)
        except OSError as error:
            raise StorageError(f"cannot make {self.path}: {error.strerror}", file=str(self.path)) from error
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise StorageError(
                f"{self.path} must be a folder of yours that is closed to others; run: chmod 700 {self.path}",
                file=str(self.path),
            )

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.path / "journal.sqlite"

    @property
    def lock(self) -> Path:
        """The controller's lock."""
        return self.path / "controller.lock"

    @property
    def log(self) -> Path:
        """What the controller prints."""
        return self.path / "controller.log"

    @property
    def spec(self) -> Path:
        """What the next controller is started with."""
        return self.path / "spec.json"

    def token(self) -> bytes:
        """The job's secret, made at the first call."""
        path = self.path / "token"
        fresh = self.path / f".token.{os.getpid()}"
        try:
            if not path.exists():
                self._write_new(fresh, secrets.token_hex(32).encode())
                with contextlib.suppress(FileExistsError):  # whole when it appears, and the first one stays
                    os.link(fresh, path)
                os.unlink(fresh)
            if os.lstat(path).st_mode & 0o077:
                raise StorageError(f"{path} is open to others; run: chmod 600 {path}", file=str(path))
            return path.read_bytes().strip()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}", file=str(path)) from error

    def keep_token(self, token: bytes) -> None:
        """Let ``token``, which was agreed on elsewhere, be the job's secret."""
        self.replace("token", token)

    def where(self) -> Whereabouts | None:
        """Where the controller listens, if one has said so."""
        try:
            return msgspec.json.decode((self.path / "controller.json").read_bytes(), type=Whereabouts)
        except (OSError, msgspec.MsgspecError):
            return None  # none yet, or one that is just being replaced

    def publish(self, address: tuple[str, int], *, term: int) -> None:
        """Say where the controller listens."""
        known = self.where()
        if known is not None and known.term > term:
            return
        here = Whereabouts(host=address[0], port=address[1], term=term, pid=os.getpid(), machine=boot_id())
        self.replace("controller.json", msgspec.json.encode(here))

    def unpublish(self, address: tuple[str, int]) -> None:
        """The controller that listened there ends."""
        known = self.where()
        if known is not None and (known.host, known.port, known.pid) == (*address, os.getpid()):
            with contextlib.suppress(OSError):  # somebody was faster
                os.unlink(self.path / "controller.json")

    def replace(self, name: str, data: bytes) -> None:
        """Write ``data`` to a file of the folder, whole or not at all."""
        path = self.path / name
        fresh = self.path / f".{name}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
            self._write_new(fresh, data)
            os.replace(fresh, path)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}", file=str(path)) from error

    @staticmethod
    def _write_new(path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(data)


def boot_id() -> str:
    """What tells this boot of this machine from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def jobs_in(home: Path) -> list[str]:
    """The names of the jobs that have a folder below ``home``."""
    try:
        return sorted(each.name for each in home.iterdir() if each.is_dir() and _NAME.fullmatch(each.name))
    except OSError:
        return []
