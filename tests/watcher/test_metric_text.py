"""Foreign metric pages: whatever is on them, what can be read is, and nothing else happens."""

from __future__ import annotations

import http.server
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError, DeadlineExceeded, StorageError
from perdure.watcher.exporters import Exported, gpus_of_dcgm, node_of_exporter, ranks_of_xpu_timer
from perdure.watcher.prometheus import parse, scrape

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "watch" / "xpu_timer"


@pytest.mark.parametrize(
    ("line", "name", "labels", "value", "at_s"),
    [
        ("up 1", "up", {}, 1.0, None),
        ("up{} 1", "up", {}, 1.0, None),
        ('a:b{x="1",} +Inf 1700000000123', "a:b", {"x": "1"}, math.inf, 1700000000.123),
        ('m { x = "a,b}" , y="\\\\ \\" \\n" }  -1.5e-3', "m", {"x": "a,b}", "y": '\\ " \n'}, -0.0015, None),
        ('{"my.metric", "label.x"="1"} 3', "my.metric", {"label.x": "1"}, 3.0, None),
        ("m .5", "m", {}, 0.5, None),
        ('h_bucket{le="1"} 3 # {trace="ab"} 0.5 1.0', "h_bucket", {"le": "1"}, 3.0, None),
        ('m{x="\u00e9\u4e2d"} 1', "m", {"x": "\u00e9\u4e2d"}, 1.0, None),
        ("m 18446744073709551615", "m", {}, 18446744073709551615.0, None),
        ("m 1\r", "m", {}, 1.0, None),
    ],
)
def test_lines_are_read(line: str, name: str, labels: dict[str, str], value: float, at_s: float | None) -> None:
    page = parse(f"# HELP {name} what\n{line}\n")
    (metric,) = page.metrics
    assert (metric.name, metric.labels, metric.value, metric.at_s) == (name, labels, value, at_s)
    assert page.left_out == 0


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(parse("m NaN").metrics[0].value)


@pytest.mark.parametrize(
    "line",
    ["m", "m x", "m 1 2 3", "m{ 1", 'm{x="1} 1', 'm{x=1} 1', 'm{x="1" y="2"} 1', 'm{x="1",x="2"} 1', "{} 1", "9m 1",
     "m 0x10", "m 1_0", "m --1", 'm{"a","b"} 1', "m\x001", "m{" + ",".join(f'l{i}="1"' for i in range(100)) + "} 1",
     "m" + "x" * 70_000 + " 1"],
)  # fmt: skip
def test_malformed_lines_are_left_out_and_told(line: str) -> None:
    page = parse(f"before 1\n{line}\nafter 2\n")
    assert [metric.name for metric in page.metrics] == ["before", "after"]
    assert page.left_out == 1
    assert page.problems[0].startswith("line 2: ")


def test_open_metrics_ends_at_its_mark_and_its_times_are_seconds() -> None:
    page = parse("# TYPE m gauge\n# UNIT m seconds\nm 1 1700000000.5\n# EOF")
    assert page.metrics[0].at_s == 1700000000.5
    assert len(parse("m 1\n# EOF\nm 2\n").metrics) == 1


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.text(alphabet='m{}="\\ ,1#\n\tN+-.e', max_size=200))
def test_nothing_on_a_page_raises(text: bytes | str) -> None:
    page = parse(text)
    assert all(isinstance(metric.value, float) for metric in page.metrics)
    assert gpus_of_dcgm(page) == {}
    assert ranks_of_xpu_timer(page, at_s=0.0) == []


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.from_regex(r"\A[a-z_]{1,8}\Z"), st.text(max_size=30), max_size=5), st.floats(width=32))
def test_what_is_written_by_the_rules_is_read_back(labels: dict[str, str], value: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
    word = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, repr(value)).replace("nan", "NaN")
    (metric,) = parse(f"m{{{inside}}} {word}\n").metrics
    assert metric.labels == labels
    assert metric.value == value or math.isnan(value)


def test_a_page_that_is_too_long_is_bounded_and_quick() -> None:
    began = time.process_time()
    page = parse(b"m 1\n" * 300_000)
    assert len(page.metrics) == 200_000
    assert page.left_out == 100_000
    parse(b'm{x="' + b"\\" * 60_000 + b"\n" + b"{" * 60_000)
    assert time.process_time() - began < 20.0


DCGM = """
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100",Hostname="n1"} 45
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100",Hostname="n1"} 91
DCGM_FI_DEV_GPU_TEMP{gpu="1",GPU_I_ID="3",modelName="NVIDIA H100",Hostname="n1"} 7
DCGM_FI_DEV_GPU_UTIL{gpu="1",Hostname="n1"} 99
DCGM_FI_DEV_POWER_USAGE{gpu="1",Hostname="n1"} 650.5
DCGM_FI_DEV_FB_USED{gpu="1",Hostname="n1"} 1024
DCGM_FI_DEV_FB_FREE{gpu="1",Hostname="n1"} 3072
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="1",Hostname="n1"} 2
DCGM_FI_DEV_XID_ERRORS{gpu="1",err_code="79",Hostname="n1"} 79
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1",Hostname="n1"} 1
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="1",Hostname="n1"} 72
DCGM_FI_DEV_PCIE_LINK_WIDTH{gpu="1",Hostname="n1"} 8
DCGM_FI_DEV_PCIE_LINK_GEN{gpu="0",Hostname="n1"} 2147483632
DCGM_FI_DEV_GPU_TEMP{gpu="9999999999",Hostname="n1"} 1
DCGM_FI_DEV_GPU_TEMP{gpu="x",Hostname="n1"} 1
"""


def test_gpus_of_dcgm_are_read_by_node() -> None:
    (node,) = gpus_of_dcgm(parse(DCGM)).items()
    name, (first, second) = node
    assert name == "n1"
    assert (first.index, first.temperature_c, first.name, first.pcie_generation) == (0, 45, "NVIDIA H100", None)
    assert (second.temperature_c, second.utilization, second.power_w) == (91, 0.99, 650.5)
    assert (second.memory_used_bytes, second.memory_total_bytes) == (1 << 30, 4 << 30)
    assert (second.ecc_uncorrected, second.remap_failed, second.remap_pending) == (2, True, False)
    assert (first.xid, second.xid) == (None, 79)
    assert (second.throttled, second.pcie_width) == (("hardware slowdown", "heat"), 8)


NODE = """
node_time_seconds 1.7e9
node_load1 3.5
node_memory_MemTotal_bytes 8.589934592e+09
node_memory_MemAvailable_bytes 4e9
node_vmstat_oom_kill 2
node_cpu_seconds_total{cpu="0",mode="idle"} 100
node_cpu_seconds_total{cpu="0",mode="user"} 100
node_cpu_seconds_total{cpu="1",mode="idle"} 100
node_cpu_seconds_total{cpu="1",mode="iowait"} 0
node_network_up{device="eth0"} 1
node_network_up{device="veth9"} 1
node_network_info{device="eth0",operstate="up"} 1
node_infiniband_state_id{device="mlx5_0",port="1"} 4
node_filesystem_size_bytes{device="/dev/sda1",fstype="ext4",mountpoint="/"} 1e12
node_filesystem_avail_bytes{device="/dev/sda1",fstype="ext4",mountpoint="/"} 5e11
node_filesystem_files{device="/dev/sda1",fstype="ext4",mountpoint="/"} 1000
node_filesystem_files_free{device="/dev/sda1",fstype="ext4",mountpoint="/"} 10
node_filesystem_readonly{device="/dev/sda1",fstype="ext4",mountpoint="/"} 0
node_filesystem_size_bytes{device="s:/x",fstype="nfs4",mountpoint="/n"} 1e12
node_filesystem_avail_bytes{device="s:/x",fstype="nfs4",mountpoint="/n"} NaN
"""


def test_a_node_of_node_exporter_is_read_and_differences_are_told() -> None:
    seen = Exported()
    first = node_of_exporter(parse(NODE), node="n1", at_s=1.0, seen=seen)
    assert (first.cpus, first.load, first.memory_total_bytes, first.oom_kills) == (2, 3.5, 8 << 30, 2)
    assert (first.links_down, first.cpu_idle, first.wall_s) == ((), None, 1.7e9)
    (disk,) = first.disks
    assert (disk.path, disk.free_bytes, disk.free_inodes, disk.read_only) == ("/", 5 * 10**11, 10, False)
    later = (
        NODE.replace('node_network_up{device="eth0"} 1', 'node_network_up{device="eth0"} 0')
        .replace('port="1"} 4', 'port="1"} 1')
        .replace('node_network_up{device="veth9"} 1', "")
        .replace('"user"} 100', '"user"} 103')
        .replace('cpu="1",mode="idle"} 100', 'cpu="1",mode="idle"} 101')
    )
    second = node_of_exporter(parse(later), node="n1", at_s=2.0, seen=seen)
    assert second.links_down == ("eth0", "mlx5_0/1")
    assert second.cpu_idle == pytest.approx(0.25)
    empty = node_of_exporter(parse(""), node="n1", at_s=3.0, seen=seen)
    assert (empty.cpus, empty.links_down, empty.disks, empty.cpu_idle) == (None, (), (), None)


@pytest.mark.skipif(not SHARED.is_dir(), reason="NOT TESTED: real pages of xpu_timer (shared data is not here)")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*/xpu_timer_metric_*")), ids=lambda path: str(path.name))
def test_real_pages_of_xpu_timer_are_read_whole(path: Path) -> None:
    text = path.read_text()
    page = parse(text)
    assert (page.left_out, len(page.metrics)) == (0, sum(line[:1] not in ("", "#") for line in text.splitlines()))
    ranks = ranks_of_xpu_timer(page, at_s=1.0)
    hangs = {int(metric.labels["rank"]): metric.value == 1 for metric in page.of("XPU_TIMER_COMMON_HANG")}
    assert {rank.rank: rank.kernel_hang for rank in ranks} == hangs
    assert all(rank.kernel_s is not None and 0 < rank.kernel_s < 1 and rank.node for rank in ranks)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"up 1\n")
        elif self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/metrics")
            self.end_headers()
        elif self.path == "/drips":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"#")
                self.wfile.flush()
                time.sleep(0.1)
        elif self.path == "/drips-heads":
            for _ in range(100):
                self.wfile.write(b"H")
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.send_error(500)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            pass  # who asked has gone

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_page_is_fetched(server: str) -> None:
    assert scrape(f"{server}/metrics").metrics[0].name == "up"


def test_what_cannot_be_fetched_raises_in_words(server: str) -> None:
    with pytest.raises(StorageError, match="500"):
        scrape(f"{server}/no")
    with pytest.raises(StorageError, match="302"):
        scrape(f"{server}/elsewhere")
    with pytest.raises(StorageError, match="cannot be read"):
        scrape("http://127.0.0.1:1/metrics")
    for url in ("file:///etc/passwd", "ftp://x/y", "http://", "http://a b/", "x"):
        with pytest.raises(CallError):
            scrape(url)


@pytest.mark.parametrize("path", ["/drips", "/drips-heads"])
def test_a_server_that_drips_is_given_up_in_time(server: str, path: str) -> None:
    began = time.monotonic()
    with pytest.raises((DeadlineExceeded, StorageError)):
        scrape(f"{server}{path}", timeout_s=1.0)
    assert time.monotonic() - began < 4.0
