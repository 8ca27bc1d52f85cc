"""Triton's kernels without a GPU: interpreted, they do what the device codec's tests ask; and they compile for GPUs.

What this cannot show is that the compiled code is right and fast; `test_device_codec.py` does the first where a GPU is.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="NOT TESTED: Triton is not installed")

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
KERNELS = {"_mask", "_compact", "_restore", "_distance", "_add_distance", "_sum_blocks", "_chain"}


def run(*command: str, timeout_s: float, **environment: str) -> str:
    """What a Python with these variables printed; a Triton of its own, since its mode is a process's."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=kept | environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_the_kernels_interpreted_pass_every_test_of_the_device_codec() -> None:
    said = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "triton-cpu", str(HERE / "test_device_codec.py")),
        timeout_s=280,
        TRITON_INTERPRET="1",
        OMP_NUM_THREADS="1",
    )
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) > 70, said
    assert "skipped" not in said


def check_compiles(tmp_path: Path, *target: str, widths: tuple[str, ...]) -> None:
    cache = str(tmp_path)
    said = run(str(HERE / "compile_kernels.py"), *target, *widths, timeout_s=280, TRITON_CACHE_DIR=cache)
    launches: dict[str, list[int]] = json.loads(said.splitlines()[-1])
    assert set(launches) == KERNELS
    assert all(len(code_bytes) >= 3 and min(code_bytes) > 1000 for code_bytes in launches.values()), launches


@pytest.mark.timeout(300)
def test_launches_on_elements_of_16_bits_compile_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    check_compiles(tmp_path, "cuda", "80", "32", widths=("2",))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", ["cuda 80 32", "cuda 90 32", "cuda 100 32", "hip gfx942 64"])
def test_every_launch_compiles(target: str, tmp_path: Path) -> None:
    check_compiles(tmp_path, *target.split(), widths=("1", "2", "4", "8"))
