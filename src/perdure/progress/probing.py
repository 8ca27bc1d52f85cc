"""What whoever starts ranks puts in their environment so that they are watched: `perdure run`, `perdure watch`."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from perdure.process.environ import PROBE
from perdure.process.runtime_dir import runtime_dir
from perdure.progress.vitals import check_private

__all__ = ["probe_env", "records_folder"]


def probe_env(folder: str | os.PathLike[str], *, base: Mapping[str, str]) -> dict[str, str]:
    """Return the words to add to ``base`` so that ranks write their records into ``folder``.

    ``folder`` has mode 0700 and should be in memory (``/dev/shm``, the runtime folder of the login session): a disk
    that is slow would be felt by the ranks. In ``folder/start`` the start-up file is laid down that makes unmodified
    code be watched; it stands at the front of PYTHONPATH. A user who has set PERDURE_PROBE=off in ``base`` is heeded:
    nothing is added. Raises `CallError` if the folder is not private.
    """
    if base.get(PROBE) == "off":
        return {}
    check_private(folder)
    start = Path(folder).resolve() / "start"
    start.mkdir(mode=0o700, exist_ok=True)
    text = Path(__file__).with_name("shim.py").read_bytes()
    new = start / f".new.{os.getpid()}"
    new.write_bytes(text)
    new.replace(start / "sitecustomize.py")
    path = base.get("PYTHONPATH")
    return {
        PROBE: str(Path(folder).resolve()),
        "PYTHONPATH": f"{start}{os.pathsep}{path}" if path else str(start),
    }


def records_folder() -> tuple[Path, int]:
    """Make a folder for the records of a node's ranks, in memory if it can be; return it, and a descriptor that locks
    it. Those that nobody holds were left by whoever was killed, and are removed.
    """
    memory = Path("/dev/shm")
    home = memory if os.access(memory, os.W_OK) else runtime_dir()
    prefix = f"perdure-ranks-{os.geteuid()}-"
    for old in home.glob(f"{prefix}*"):
        if (fd := _locked(old)) is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(fd)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        fd = _locked(folder)
        if fd is not None and folder.exists():  # else another one took it for one that was left
            return folder, fd
        if fd is not None:
            os.close(fd)


def _locked(folder: Path) -> int | None:
    """A descriptor that locks ``folder``, a folder of ours; None if somebody else does, or it is gone."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
    except OSError:
        pass
    os.close(fd)
    return None
