"""``perdure watch metrics``: Debian's real node-exporter, and pages in the format of the others, served over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "watch" / "xpu_timer"
_APT = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "-y", "--no-install-recommends"]


def dcgm(node: str, *, ecc: int = 0, gpus: int = 2) -> str:
    """A page as dcgm-exporter writes it, of a node of which the first GPU has so many ECC errors."""
    labels = 'gpu="{0}",UUID="GPU-{0}",device="nvidia{0}",modelName="NVIDIA H100",Hostname="{1}"'
    values = {"GPU_TEMP": 50, "POWER_USAGE": 400, "SM_CLOCK": 1700, "GPU_UTIL": 98, "FB_USED": 60000, "FB_FREE": 20000}
    lines = []
    for name, value in values.items():
        lines += [f"# HELP DCGM_FI_DEV_{name} of it", f"# TYPE DCGM_FI_DEV_{name} gauge"]
        lines += [f"DCGM_FI_DEV_{name}{{{labels.format(gpu, node)}}} {value}" for gpu in range(gpus)]
    lines += [f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{labels.format(gpu, node)}}} {0 if gpu else ecc}" for gpu in range(gpus)]
    return "\n".join(lines) + "\n"


class Pages:
    """What is served, by path; ``hangs`` are paths whose answer does not come."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.hangs: set[str] = set()
        self.asked: dict[str, int] = {}
        self.url = ""


@contextmanager
def serving() -> Iterator[Pages]:
    pages = Pages()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages.asked[self.path] = pages.asked.get(self.path, 0) + 1
            if self.path in pages.hangs:
                over.wait(60)
                return
            text = pages.texts.get(self.path)
            self.send_response(200 if text is not None else 503)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    pages.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield pages
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def watching(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "perdure", "watch", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(holds: Callable[[], object], *, seconds: float = 60.0) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def told(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def node_exporter() -> str:
    """The program of Debian's package, installed where it is missing and we may; else skip."""
    name = "prometheus-node-exporter"
    if shutil.which(name) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update"], ["install", name]):
            subprocess.run([*_APT, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: a real node-exporter; apt install {name}")
    return found


@contextmanager
def exporting(program: str, port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}/metrics"
    words = [program, f"--web.listen-address=127.0.0.1:{port}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            return False

    try:
        wait_until(answers)
        yield url
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.timeout(700)
def test_a_real_node_exporter_that_goes_is_suspected_only_after_repeated_failures(
    tmp_path: Path, node_exporter: str
) -> None:
    out = tmp_path / "verdicts"
    with serving() as pages, ExitStack() as stack:
        pages.texts["/metrics"] = dcgm("gpu-7")
        exporter = stack.enter_context(ExitStack())
        url = exporter.enter_context(exporting(node_exporter, free_port()))
        words = ["--metrics", url, f"{pages.url}/metrics", "--every", "1", "--json", str(out)]
        watch = stack.enter_context(watching(*words))
        wait_until(lambda: pages.asked.get("/metrics", 0) >= 5)
        assert told(out) == []  # all is well
        exporter.close()
        wait_until(lambda: told(out))
        watch.send_signal(signal.SIGINT)
        stdout, stderr = watch.communicate(timeout=30)
    (said,) = told(out)
    node = os.uname().nodename
    assert (said["stage"], said["action"], said["nodes"]) == ("suspicion", "warn", [node])
    assert "has not answered 3 times, while others do" in stderr
    assert f"{url} does not answer" in stderr
    assert (watch.returncode, "watched 2 exporters that answered" in stdout) == (0, True)


@pytest.mark.timeout(150)
def test_an_error_counter_that_grows_names_the_node_though_another_exporter_hangs(tmp_path: Path) -> None:
    out = tmp_path / "verdicts"
    with serving() as pages:
        pages.texts |= {"/a": dcgm("gpu-7", ecc=3), "/b": dcgm("gpu-8")}
        pages.hangs.add("/c")
        urls = [f"{pages.url}/{path}" for path in "cab"]
        with watching("metrics", *urls, "--every", "1", "--json", str(out)) as watch:
            wait_until(lambda: pages.asked.get("/a", 0) >= 4)
            assert not [each for each in told(out) if each["label"] == "hw.gpu_ecc"]  # they were there before
            pages.texts["/a"] = dcgm("gpu-7", ecc=4)
            wait_until(lambda: [each for each in told(out) if each["label"] == "hw.gpu_ecc"])
            wait_until(lambda: pages.asked.get("/c", 0) >= 2)  # so it has been given up once
            watch.send_signal(signal.SIGINT)
            _, stderr = watch.communicate(timeout=30)
    (said,) = [each for each in told(out) if each["label"] == "hw.gpu_ecc"]
    assert (said["nodes"], said["stage"], said["owner"]) == (["gpu-7"], "verdict", "node")
    assert "did not answer within" in stderr


@pytest.mark.timeout(150)
def test_exporters_that_all_fail_accuse_nobody_and_are_named(tmp_path: Path) -> None:
    out = tmp_path / "verdicts"
    with serving() as pages:
        with watching("metrics", f"{pages.url}/x", f"{pages.url}/y", "--every", "1", "--json", str(out)) as watch:
            wait_until(lambda: min(pages.asked.get("/x", 0), pages.asked.get("/y", 0)) >= 6)
            watch.send_signal(signal.SIGINT)
            stdout, stderr = watch.communicate(timeout=30)
    assert told(out) == []
    assert f"{pages.url}/x does not answer" in stderr
    assert "0 exporters that answered" in stdout


@pytest.mark.skipif(not SHARED.is_dir(), reason="NOT TESTED: pages of a real job; shared data are missing")
@pytest.mark.timeout(150)
def test_a_real_page_of_hanging_kernels_is_told_and_a_healthy_one_is_not(tmp_path: Path) -> None:
    with serving() as pages:
        pages.texts |= {
            "/hang": (SHARED / "hang" / "xpu_timer_metric_some").read_text(),
            "/well": (SHARED / "normal" / "xpu_timer_metric_0").read_text(),
        }
        for path in pages.texts:
            out = tmp_path / path[1:]
            words = ["metrics", f"{pages.url}{path}", "--once", "--json", str(out)]
            ended = subprocess.run(
                [sys.executable, "-m", "perdure", "watch", *words], capture_output=True, text=True, timeout=60
            )
            assert ended.returncode == 0, ended.stderr
            assert ("does not end" in ended.stderr) == (path == "/hang")


@pytest.mark.timeout(150)
def test_metrics_and_logs_of_one_job_go_together(tmp_path: Path) -> None:
    out, logs = tmp_path / "verdicts", tmp_path / "logs"
    logs.mkdir()
    (logs / "rank-0.log").write_text("".join(f"step {n} loss: {2 + n % 7 / 100}\n" for n in range(60)))
    with serving() as pages:
        pages.texts["/metrics"] = dcgm("gpu-7", ecc=1)
        words = ["--logs", str(logs), "--metrics", f"{pages.url}/metrics", "--every", "1", "--json", str(out)]
        with watching(*words) as watch:
            wait_until(lambda: pages.asked.get("/metrics", 0) >= 2)
            with (logs / "rank-0.log").open("a") as file:
                file.write("step 60 loss: nan\n")
            wait_until(lambda: [each["label"] for each in told(out)] == ["train.nan"])
            pages.texts["/metrics"] = dcgm("gpu-7", ecc=2)  # which is why, so it is the same incident
            wait_until(lambda: [each["label"] for each in told(out)] == ["train.nan", "hw.gpu_ecc"])
            watch.send_signal(signal.SIGINT)
            stdout, _ = watch.communicate(timeout=30)
    assert "1 log of 1 rank and 1 exporter that answered" in stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("metrics",), "is missing"),
        (("metrics", "file:///etc/passwd"), "a URL must be http"),
        (("--metrics", "http://a/", "--", "true"), "leave out either"),
        (("metrics", "http://a/", "--every", "0"), "1 second or more"),
    ],
)
def test_what_cannot_be_scraped_is_said(words: tuple[str, ...], says: str) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "perdure", "watch", *words], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 64
    assert says in refused.stderr
