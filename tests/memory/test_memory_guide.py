"""What docs/memory.md shows is what one gets: its commands and its Python are run, in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"


def same(said: str) -> str:
    """Without what is another each time: moments of now, and sizes."""
    said = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", "TIME", said)
    return re.sub(r"\d+ files, [\d,]+ bytes", "N files, N bytes", said)


def test_the_commands_of_the_guide_print_what_it_shows(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
    assert len(steps) > 8
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PERDURE_MEMORY": str(tmp_path), "PATH": path}
    for command, shown in steps:
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=env, stdin=subprocess.DEVNULL
        )
        assert (done.returncode, same(done.stdout)) == (0, same(shown)), command + done.stderr


def test_the_five_lines_of_the_guide_print_what_it_shows(tmp_path: Path) -> None:
    code, shown = re.search(r"## Five lines\n\n```python\n(.*?)```\n\n```\n(.*?)```", GUIDE.read_text(), re.S).groups()  # type: ignore[union-attr]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (shown, "")
