"""The decoders under a sanitizer, fed with what no encoder wrote."""

from __future__ import annotations

import concurrent.futures
import os
import platform
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SHARED = ("cluster", "mask", "planes", "planes_decode", "planes_plan", "planes_split", "rans_bytes", "rans_model",
          "rans_scalar", "simd", "ulp", "xxh3", "xxh3_scalar", "xxh3_short", "fuzz/decoders",
          "fuzz/tile_parts")  # fmt: skip
X86 = ("cluster_*", "codec_levels_x86", "simd_x86", "stream_copy_x86", "xxh3_avx*", "xxh3_loops_x86", "mask_*",
       "planes_split_*", "rans_*_avx2", "rans_*_avx512")  # fmt: skip
PORTABLE = ("codec_levels_portable", "simd_portable", "stream_copy_portable", "xxh3_loops_portable")
FLAGS = ("-std=gnu++20", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-w", "-pthread")
CODECS = ("mask", "ulp", "planes")


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built of what this processor runs: all its instruction levels."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("fuzz")
    machine = platform.machine().lower()
    names = (*SHARED, *(X86 if machine in ("x86_64", "amd64") else PORTABLE))
    sources = sorted({path for name in names for path in NATIVE.glob(f"{name}.cpp")})

    def compiled(source: Path) -> str:
        made = folder / f"{source.stem}.o"
        command = [compiler, *FLAGS, "-c", str(source), "-o", str(made)]
        subprocess.run(command, check=True, timeout=600)
        return str(made)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    program = folder / "decoders"
    subprocess.run([compiler, *FLAGS, *objects, "-o", str(program)], check=True, timeout=600)
    return program


def fuzz(program: Path, cases: int, seeds: range) -> Counter[tuple[str, str]]:
    """Run ``cases``, shared by one process a seed; how many each codec had at each instruction level."""
    processes = [
        subprocess.Popen(
            [program, str(cases // len(seeds)), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for seed in seeds
    ]
    tried: Counter[tuple[str, str]] = Counter()
    try:
        for process, seed in zip(processes, seeds, strict=True):
            told, wrong = process.communicate(timeout=1700)
            assert process.returncode == 0, f"seed {seed}: {wrong[-4000:]}"
            for line in told.splitlines():
                codec, level, count, *_ = line.split()
                tried[codec, level] += int(count)
    finally:
        for process in processes:
            process.kill()
    return tried


def check(tried: Counter[tuple[str, str]], cases: int) -> None:
    """All cases were run, and each codec had its share at each level."""
    assert tried.total() == cases
    assert {codec for codec, _ in tried} == set(CODECS)
    levels = {level for _, level in tried}
    assert "scalar" in levels
    assert len(tried) == len(CODECS) * len(levels)
    assert min(tried.values()) > cases / len(tried) * 0.9


@pytest.mark.timeout(600)
def test_thirty_thousand_hostile_tiles_never_reach_beyond_their_memory(fuzzer: Path) -> None:
    check(fuzz(fuzzer, 30_000, range(1)), 30_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_hostile_tiles_never_reach_beyond_their_memory(fuzzer: Path) -> None:
    check(fuzz(fuzzer, 1_000_000, range(1, 3)), 1_000_000)
