"""`import perdure` is instant and brings in the standard library alone; its names resolve when they are used."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import perdure

ROOT = Path(__file__).parent.parent


def in_a_fresh_interpreter(code: str) -> str:
    """Run ``code`` in a new Python and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_only_the_standard_library_and_perdure_itself() -> None:
    code = "import sys, json; old = set(sys.modules); import perdure; print(json.dumps(sorted(set(sys.modules) - old)))"
    loaded = json.loads(in_a_fresh_interpreter(code))
    assert "perdure" in loaded
    assert [name for name in loaded if name.startswith("perdure.")] == []
    strangers = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"perdure"}
    assert strangers == set()


def test_import_takes_less_than_fifty_milliseconds_of_processor_time() -> None:
    code = "import time; start = time.process_time(); import perdure; print(time.process_time() - start)"
    taken_s = [float(in_a_fresh_interpreter(code)) for _ in range(5)]
    assert statistics.median(taken_s) < 0.050


@pytest.mark.parametrize("name", perdure.__all__)
def test_every_public_name_resolves_and_is_kept(name: str) -> None:
    assert getattr(perdure, name) is getattr(perdure, name)
    assert name in dir(perdure)
    assert name in vars(perdure)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chekpointer'"):
        _ = perdure.chekpointer


def test_a_missing_library_names_the_extra_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
import perdure
try:
    perdure.load
except ModuleNotFoundError as error:
    print(error)
"""
    assert "pip install 'perdure[torch]'" in in_a_fresh_interpreter(code)


def test_the_version_is_the_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert perdure.__version__ == project["version"]
