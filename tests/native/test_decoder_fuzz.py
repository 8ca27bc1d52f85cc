"""The decoders under a sanitizer, fed with what no encoder wrote."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SHARED = ("mask", "planes", "planes_split", "rans_model", "rans_scalar", "simd", "ulp", "xxh3", "xxh3_s*")
X86 = (
    "codec_levels_x86",
    "simd_x86",
    "stream_copy_x86",
    "xxh3_avx*",
    "xxh3_loops_x86",
    "mask_*",
    "planes_split_*",
    "rans_*_avx2",
    "rans_*_avx512",
)
PORTABLE = ("codec_levels_portable", "simd_portable", "stream_copy_portable", "xxh3_loops_portable")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("sources", [X86, PORTABLE], ids=["x86", "portable"])
def test_a_million_hostile_tiles_never_reach_beyond_their_memory(
    tmp_path: Path, sources: tuple[str, ...], seed: int
) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    if (
        sources is X86
        and "x86"
        not in subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True, timeout=60).stdout
    ):
        pytest.skip("not an x86 processor: there are no vector versions")
    program = tmp_path / "decoders"
    files = [path for name in (*SHARED, *sources, "fuzz/decoders") for path in NATIVE.glob(f"{name}.cpp")]
    flags = ("-std=gnu++20", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-w", "-pthread")
    subprocess.run([compiler, *flags, *map(str, files), "-o", str(program)], check=True, timeout=600)
    ran = subprocess.run([str(program), "300000", str(seed)], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.startswith("300000 cases")
