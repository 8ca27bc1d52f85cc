"""The private folder of this user on this node, where sockets and locks live: short-lived names, never data."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from perdure.errors import StorageError
from perdure.process.environ import runtime_home

__all__ = ["runtime_dir"]


def runtime_dir(*, home: str | None = None, tmp: str = "/tmp") -> Path:
    """Return ``<home>/perdure`` (home: $XDG_RUNTIME_DIR unless given), else ``/tmp/perdure-<uid>``; made with mode 0700
    if it is not there.

    Raises `StorageError` if the folder is a link, belongs to somebody else, or is open to others: then whoever made it
    could read or replace what is in it.
    """
    home = home or runtime_home()
    if home is not None and os.path.isdir(home) and os.access(home, os.W_OK):
        place = Path(home) / "perdure"
    else:
        place = Path(tmp) / f"perdure-{os.geteuid()}"
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise StorageError(f"cannot make {place}: {error.strerror}", file=str(place), errno=error.errno) from error
    facts = os.lstat(place)
    if not stat.S_ISDIR(facts.st_mode):
        raise StorageError(f"{place} must be a folder and not a link; remove it", file=str(place))
    if facts.st_uid != os.geteuid():
        raise StorageError(
            f"{place} belongs to user {facts.st_uid}; set XDG_RUNTIME_DIR to a folder of yours", file=str(place)
        )
    if facts.st_mode & 0o077:
        raise StorageError(f"{place} is open to other users; run: chmod 700 {place}", file=str(place))
    return place
