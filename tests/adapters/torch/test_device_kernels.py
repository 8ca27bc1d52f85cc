"""Triton's kernels without a GPU: interpreted, they do what the tests of the device codec ask; and they compile for GPUs.

What this cannot show is that the compiled code is right and fast; `test_device_codec.py` does the first where a GPU is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="NOT TESTED: Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from perdure.adapters.torch import device_kernels as kernels  # noqa: E402

ROOT = Path(__file__).parents[3]
TESTS = Path(__file__).with_name("test_device_codec.py")


def test_the_kernels_interpreted_pass_every_test_of_the_device_codec() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "triton-cpu", str(TESTS)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 70, done.stdout
    assert "skipped" not in done.stdout


ELEMENT = ("u8", "i16", "i32", "i64")
SIGNATURES: list[tuple[str, dict[str, str], dict[str, int]]] = [
    *(
        (name, {key: kind.replace("T", element) for key, kind in signature.items()}, {"STRETCH": 2048})
        for element in ELEMENT
        for name, signature in (
            ("_mask", {"now": "*T", "before": "*T", "mask": "*u8", "counts": "*i64", "n": "i64"}),
            ("_compact", {"now": "*T", "mask": "*u8", "starts": "*i64", "values": "*T", "n": "i64"}),
            ("_restore", {"before": "*T", "mask": "*u8", "starts": "*i64", "values": "*T", "out": "*T", "n": "i64"}),
        )
    ),
    *(
        (name, signature, {"STRETCH": 2048, "MAGNITUDE": magnitude})
        for element, magnitude in (("i8", 0x7F), ("i16", 0x7FFF))
        for name, signature in (
            ("_distance", {"now": f"*{element}", "before": f"*{element}", "out": "*i16", "n": "i32"}),
            ("_add_distance", {"distance": "*i16", "before": f"*{element}", "out": f"*{element}", "n": "i32"}),
        )
    ),
    ("_sum_blocks", {"words": "*u64", "keys": "*u64", "sums": "*u64", "n": "i32"}, {"BLOCKS": 8}),
    (
        "_chain",
        {**dict.fromkeys(("sums", "keys", "first", "out"), "*u64"),
         **dict.fromkeys(("tiles", "blocks", "last_blocks", "stride"), "i32")},
        {"TILES": 4, "UNROLL": 8},
    ),
]  # fmt: skip


@pytest.mark.parametrize("target", [("cuda", 80, 32), ("hip", "gfx942", 64)], ids=["sm_80", "gfx942"])
def test_the_kernels_compile_for_gpus_that_are_not_here(
    target: tuple[str, Any, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    machine_code = {"cuda": "cubin", "hip": "hsaco"}[target[0]]
    for name, signature, constants in SIGNATURES:
        kernel = getattr(kernels, name)
        source = ASTSource(
            kernel,
            {**signature, **dict.fromkeys(constants, "constexpr")},
            constexprs={(kernel.arg_names.index(key),): value for key, value in constants.items()},
        )
        assert triton.compile(source, target=GPUTarget(*target)).asm[machine_code]
