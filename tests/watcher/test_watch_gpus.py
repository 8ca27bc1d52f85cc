"""GPUs as the watcher reads them, of a library of our own that answers as a driver would; with and without faults."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.process import nvml as ours
from perdure.process.nvml import Nvml
from perdure.watcher.gpus import GpuWatch, Reader
from perdure.watcher.labels import Label
from perdure.watcher.rules import NodeRules
from perdure.watcher.samples import GpuState, NodeSample

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")
    assert compiler is not None, "a C compiler is needed, as for perdure itself"
    to = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    flags = ["-x", "c", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, str(HERE / "fake_nvml_signals.c"), "-o", str(to)], check=True)
    return str(to)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda words: monkeypatch.setenv("FAKE_NVML", words)


@pytest.fixture
def reader(library: str, says: Callable[[str], None]) -> Iterator[Reader]:
    says("gpus=2")
    nvml = Nvml.open(library)
    assert nvml is not None
    with nvml:
        yield Reader(nvml, belongs=lambda pid: pid == os.getpid())


def test_a_healthy_gpu_is_told_whole(reader: Reader, says: Callable[[str], None]) -> None:
    says(f"gpus=2 links:0=4 pid:0={os.getpid()} used:0=1024 slowed:1=1")
    first, second = reader.read()
    assert first == GpuState(
        index=0,
        name="Fake GPU",
        bus="00000000:3B:00.0",
        temperature_c=41,
        power_w=300,
        sm_clock_mhz=1200,
        utilization=0.99,
        memory_used_bytes=3 << 30,
        memory_total_bytes=80 << 30,
        ecc_uncorrected=0,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        nvlinks_down=0,
    )
    assert second.nvlinks_down is None
    assert second.throttled == ()


@pytest.mark.parametrize(
    ("fault", "field", "value"),
    [
        ("ecc:1=7", "ecc_uncorrected", 7),
        ("pending:1=1", "remap_pending", True),
        ("failure:1=1", "remap_failed", True),
        ("slowed:1=72", "throttled", ("hardware slowdown", "heat")),
        ("hot:1=94", "temperature_c", 94),
        ("width:1=8", "pcie_width", 8),
        ("generation:1=1", "pcie_generation", 1),
        ("pid:1=1", "foreign_pids", (1,)),
        ("ecc_unsupported=1", "ecc_uncorrected", None),
        ("lost:1=1", "lost", "it has fallen off the bus"),
    ],
)
def test_a_fault_is_read_of_the_gpu_that_has_it(
    reader: Reader, says: Callable[[str], None], fault: str, field: str, value: object
) -> None:
    reader.read()
    says(f"gpus=2 {fault}")
    first, second = reader.read()
    assert getattr(second, field) == value
    assert first.lost == ""


def test_links_count_as_down_only_after_they_were_up(reader: Reader, says: Callable[[str], None]) -> None:
    says("gpus=2 links:0=3 links:1=0")
    assert [gpu.nvlinks_down for gpu in reader.read()] == [0, 0]
    says("gpus=2 links:0=1 links:1=0")
    assert [gpu.nvlinks_down for gpu in reader.read()] == [2, 0]


def test_a_gpu_that_is_not_counted_any_more_is_lost(reader: Reader, says: Callable[[str], None]) -> None:
    reader.read()
    says("gpus=1")
    assert [gpu.lost for gpu in reader.read()] == ["", "the driver does not count it any more"]


def test_rules_name_the_label_of_what_was_read(reader: Reader, says: Callable[[str], None]) -> None:
    rules = NodeRules()

    def labels(at_s: float) -> set[Label | None]:
        return {one.label for one in rules.look(NodeSample(node="a", at_s=at_s, gpus=reader.read()))}

    assert labels(0.0) == set()
    says("gpus=2 ecc:0=1 failure:1=1")
    assert labels(1.0) == {Label.GPU_ECC}
    says("gpus=2 ecc:0=1 lost:1=1")
    assert labels(2.0) == {Label.GPU_OFF_BUS}


def test_no_library_is_no_driver(tmp_path: Path) -> None:
    assert Nvml.open(str(tmp_path / "none.so")) is None
    watch = GpuWatch(belongs=lambda pid: True, library=str(tmp_path / "none.so"))
    assert watch.wait_first(30.0)
    assert (watch.latest(), watch.problem()) == ((), "")
    watch.close()


def test_the_watch_tells_states_and_xids_and_a_driver_that_does_not_answer(
    library: str, says: Callable[[str], None]
) -> None:
    says("gpus=2 broken=1")
    watch = GpuWatch(belongs=lambda pid: True, library=library, every_s=0.01)
    assert watch.wait_first(30.0)
    assert "does not answer: fake error" in watch.problem()
    watch.close()
    says("gpus=8 xid:5=79")
    watch = GpuWatch(belongs=lambda pid: True, library=library, node="n1", every_s=0.01)
    give_up = time.monotonic() + 30.0
    lines = []
    while not lines and time.monotonic() < give_up:
        time.sleep(0.01)
        lines += watch.lines()
    watch.close()
    assert len(watch.latest()) == 8
    assert [(line.text, line.node, line.source) for line in lines] == [
        ("NVRM: Xid (PCI:00000000:40:00.0): 79, told by NVML", "n1", "kernel")
    ]


def test_where_processes_have_other_numbers_none_is_called_foreign(library: str, says: Callable[[str], None]) -> None:
    says("gpus=1 pid:0=1")
    for same, foreign in ((True, (1,)), (False, ())):
        watch = GpuWatch(belongs=lambda pid: False, library=library, same_numbers=same)
        assert watch.wait_first(30.0)
        assert watch.latest()[0].foreign_pids == foreign
        watch.close()


def test_a_driver_that_hangs_stops_neither_the_watch_nor_the_process(library: str) -> None:
    script = (
        "import sys, time\n"
        "from perdure.watcher import gpus\n"
        "gpus.HUNG_S = 0.2\n"
        "watch = gpus.GpuWatch(belongs=lambda pid: True, library=sys.argv[1])\n"
        "time.sleep(0.5)\n"
        "print(watch.latest(), watch.problem())\n"
        "watch.close()\n"
    )
    env = {**os.environ, "FAKE_NVML": "gpus=8 hang=1"}
    command = [sys.executable, "-c", script, library]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("() the driver of the GPUs has not answered for")


def test_structures_and_numbers_are_those_of_nvidias_own_bindings() -> None:
    theirs = pytest.importorskip("pynvml", reason="NOT TESTED: our structures against nvidia-ml-py, which is missing")
    for mine, name in (
        (ours._Pci, "nvmlPciInfo_t"),
        (ours._Memory, "c_nvmlMemory_t"),
        (ours._Utilization, "c_nvmlUtilization_t"),
        (ours._Process, "c_nvmlProcessInfo_v2_t"),
        (ours._Event, "c_nvmlEventData_t"),
    ):
        known = getattr(theirs, name)
        assert ctypes.sizeof(mine) == ctypes.sizeof(known)
        offsets = [getattr(mine, field[0]).offset for field in mine._fields_]
        assert offsets == [getattr(known, field[0]).offset for field in known._fields_]
    assert (ours._LOST, ours._TOO_SMALL, ours._NO_DRIVER) == (
        theirs.NVML_ERROR_GPU_IS_LOST, theirs.NVML_ERROR_INSUFFICIENT_SIZE, theirs.NVML_ERROR_DRIVER_NOT_LOADED,
    )  # fmt: skip
    assert theirs.NVML_ERROR_TIMEOUT == ours._TIMEOUT
    assert {
        theirs.NVML_ERROR_INVALID_ARGUMENT, theirs.NVML_ERROR_NOT_SUPPORTED, theirs.NVML_ERROR_NO_PERMISSION,
        theirs.NVML_ERROR_FUNCTION_NOT_FOUND,
    } == ours._NOT_TOLD  # fmt: skip
    assert theirs.nvmlEventTypeXidCriticalError == ours._XID_EVENT
    assert (theirs.NVML_CLOCK_SM, theirs.NVML_TEMPERATURE_GPU) == (ours._SM_CLOCK, ours._CORE)
    assert (theirs.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, theirs.NVML_VOLATILE_ECC) == (
        ours._UNCORRECTED, ours._SINCE_BOOT,
    )  # fmt: skip
    bits = {
        theirs.nvmlClocksThrottleReasonSwPowerCap: "power cap",
        theirs.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
        theirs.nvmlClocksThrottleReasonSwThermalSlowdown: "warmth",
        theirs.nvmlClocksThrottleReasonHwThermalSlowdown: "heat",
        theirs.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    }
    assert bits == ours.SLOWED
    assert theirs.nvmlClocksThrottleReasonGpuIdle == ours.IDLE
