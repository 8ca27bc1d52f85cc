"""What can be had is what the tightest of all limits leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.process.memory import available_nbytes

MIB = 1 << 20


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, proc__meminfo=f"MemTotal: 9 kB\nMemAvailable:   {8 << 10} kB\n")
    return tmp_path


def stat(root: Path, folder: str, **files: str) -> None:
    for name, text in files.items():
        path = root / folder / name.replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_limits_it_is_what_the_kernel_reckons(root: Path) -> None:
    assert available_nbytes(root=root) == 8 * MIB
    put(root, proc__self__cgroup="0::/\n4:memory:/\n")
    stat(root, "sys/fs/cgroup", memory_DOT_max="max\n", memory_DOT_current="5\n")
    assert available_nbytes(root=root) == 8 * MIB


def test_a_limit_of_version_2_counts_and_so_does_one_above_it(root: Path) -> None:
    put(root, proc__self__cgroup="0::/a/b\n")
    stat(
        root, "sys/fs/cgroup/a/b", memory_DOT_max=f"{6 * MIB}\n", memory_DOT_current=f"{4 * MIB}\n",
        memory_DOT_stat=f"anon 5\ninactive_file {MIB}\nactive_file 7\n",
    )  # fmt: skip
    assert available_nbytes(root=root) == 3 * MIB
    stat(root, "sys/fs/cgroup/a", memory_DOT_max=f"{9 * MIB}\n", memory_DOT_current=f"{8 * MIB}\n")
    assert available_nbytes(root=root) == MIB
    stat(root, "sys/fs/cgroup/a", memory_DOT_max=f"{7 * MIB}\n")
    assert available_nbytes(root=root) == 0


def test_a_limit_of_version_1_counts_also_where_the_container_sees_its_own_folder_as_the_top(root: Path) -> None:
    put(root, proc__self__cgroup="9:cpu:/x\n4:memory:/not/seen/here\n")
    stat(
        root, "sys/fs/cgroup/memory", memory_DOT_limit_in_bytes=f"{5 * MIB}\n",
        memory_DOT_usage_in_bytes=f"{4 * MIB}\n", memory_DOT_stat=f"inactive_file 3\ntotal_inactive_file {MIB}\n",
    )  # fmt: skip
    assert available_nbytes(root=root) == 2 * MIB
