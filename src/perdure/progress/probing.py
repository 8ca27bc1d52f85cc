"""What whoever starts ranks puts in their environment so that they are watched: `perdure run`, `perdure watch`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from perdure.process.environ import PROBE
from perdure.progress.vitals import check_private

__all__ = ["probe_env"]


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
