"""Triton's kernels without a GPU: interpreted, they do what the device codec's tests ask; and they compile for GPUs.

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


Form = tuple[str, dict[str, str], dict[str, int]]
"""A kernel's name, the types of its arguments, and those that are constants."""

DIGESTS: list[Form] = [
    ("_sum_blocks", {"words": "*u64", "keys": "*u64", "sums": "*u64", "n": "i64"}, {"BLOCKS": 8}),
    (
        "_chain",
        {**dict.fromkeys(("sums", "keys", "first", "out"), "*u64"),
         **dict.fromkeys(("tiles", "blocks", "last_blocks", "stride"), "i32")},
        {"TILES": 4, "UNROLL": 8},
    ),
]  # fmt: skip


def of_elements(element: str) -> list[Form]:
    """The kernels of `mask` for elements of this type, and those of distances if there are any."""
    mask = [
        ("_mask", {"now": element, "before": element, "mask": "*u8", "counts": "*i64"}),
        ("_compact", {"now": element, "mask": "*u8", "starts": "*i64", "values": element}),
        ("_restore", {"before": element, "mask": "*u8", "starts": "*i64", "values": element, "out": element}),
    ]
    bits, magnitude = {"*u8": ("*i8", 0x7F), "*i16": ("*i16", 0x7FFF)}.get(element, ("", 0))
    distances = [
        ("_distance", {"now": bits, "before": bits, "out": "*i16"}),
        ("_add_distance", {"distance": "*i16", "before": bits, "out": bits}),
    ]
    return [
        *((name, {**types, "n": "i64"}, {"STRETCH": 2048}) for name, types in mask),
        *(
            (name, {**types, "n": "i64"}, {"MAGNITUDE": magnitude, "STRETCH": 2048})
            for name, types in distances
            if bits
        ),
    ]


def check_compiles(form: Form, target: GPUTarget) -> None:
    name, types, constants = form
    kernel = getattr(kernels, name)
    source = ASTSource(
        kernel,
        {key: "constexpr" if key in constants else types[key] for key in kernel.arg_names},
        {(kernel.arg_names.index(key),): value for key, value in constants.items()},
    )
    code = triton.compile(source, target=target).asm[{"cuda": "cubin", "hip": "hsaco"}[target.backend]]
    assert len(code) > 1000


def test_the_kernels_of_16_bits_compile_for_a_gpu_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for form in of_elements("*i16") + DIGESTS:
        check_compiles(form, GPUTarget("cuda", 80, 32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)], ids=str
)
def test_every_form_of_the_kernels_compiles(
    target: tuple[str, Any, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    forms = [form for element in ("*u8", "*i16", "*i32", "*i64") for form in of_elements(element)] + DIGESTS
    for name, types, constants in forms:
        check_compiles((name, types, constants), GPUTarget(*target))
        if "n" in types:  # Triton makes another kernel where a size is 1
            check_compiles((name, types, {**constants, "n": 1}), GPUTarget(*target))
