"""The arrows of docs/architecture.md: imports point down, siblings do not know each other, no folder stands nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent


def test_imports_point_down() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_top_storey_uses_the_lazy_names() -> None:
    """Through `perdure.attach` and the like a lower storey would import a higher one and no arrow would show it."""
    graph = grimp.build_graph("perdure", cache_dir=None)
    lines = {
        f"{name}: {found['line_contents']}"
        for name in graph.find_modules_that_directly_import("perdure")
        if name.split(".")[1] not in ("cli", "testing")
        for found in graph.get_import_details(importer=name, imported="perdure")
    }
    # The compiled module has no source, so the graph takes its name for one of perdure's own.
    assert {line for line in lines if not line.endswith(": from perdure import _native")} == set()
