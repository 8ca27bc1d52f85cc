"""Whether a process of this machine still has a log open for writing, as far as /proc lets us see."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["written_by_someone"]


def written_by_someone(files: Iterable[Path]) -> bool:
    """Whether another process has one of ``files`` open for writing. Processes of other users, containers and machines
    are not seen, so a no is only worth something if there was a yes before.
    """
    wanted = {os.path.realpath(file) for file in files}
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        with suppress(OSError), os.scandir(f"/proc/{name}/fd") as fds:  # it has ended, or is not ours to look at
            for fd in fds:
                with suppress(OSError):
                    if os.readlink(fd.path) in wanted and os.lstat(fd.path).st_mode & 0o200:
                        return True
    return False
