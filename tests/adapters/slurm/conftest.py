"""One real Slurm of four nodes for all tests of a session; whoever kills a node gives it back."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from perdure.testing.slurm import PACKAGES, Slurm, missing_programs

_APT = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "-y", "--no-install-recommends"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """The Slurm itself; tests take `slurm`."""
    install()
    with Slurm(tmp_path_factory.mktemp("slurm"), env=os.environ) as slurm:
        yield slurm


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """The Slurm with all nodes idle; jobs that a test leaves behind are ended, nodes that it killed come back."""
    cluster.wait_idle()
    yield cluster
    cluster.reset()


def install() -> None:
    """Install Slurm where it is missing and we may; else skip."""
    path = os.environ.get("PATH", os.defpath)
    if missing_programs(path) and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update"], ["install", *PACKAGES]):
            subprocess.run([*_APT, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False)
    missing = missing_programs(path)
    if missing:
        pytest.skip(f"NOT TESTED: Slurm; {', '.join(missing)} missing: apt install {' '.join(PACKAGES)}")
