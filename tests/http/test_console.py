"""``perdure console`` beside a running job: its API and metrics, and its page in a real browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from browser import Browser, chromium

from perdure.testing.jobs import SteppingJob

CONSOLE = [sys.executable, "-m", "perdure", "console"]


@dataclass
class Running:
    """A job, and a console over it."""

    job: SteppingJob
    url: str
    "Where one logs in, with the token."

    @property
    def base(self) -> str:
        return self.url.partition("/login")[0]

    @property
    def token(self) -> str:
        return self.url.partition("#token=")[2]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.base, headers={"Authorization": f"Bearer {self.token}"}, timeout=60)


def heed_interrupts() -> None:
    """Where the tests run in the background SIGINT is ignored, and a child inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with SteppingJob(tmp_path, step_s=0.05) as job:
        env = os.environ | {"PERDURE_STATE": str(job.home)}
        console = subprocess.Popen(CONSOLE, env=env, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
        assert console.stdout is not None
        try:
            word, url = console.stdout.readline().split()
            assert word == "console:"
            job.wait_for_step(5)
            yield Running(job, url)
        finally:
            console.send_signal(signal.SIGINT)
            assert console.wait(60) == 130
            console.stdout.close()


def test_the_api_drains_and_stops_a_running_job(running: Running) -> None:
    with running.client() as client:
        give_up = time.monotonic() + 20
        while True:  # a launcher reports twice a second
            job = client.get("/api/jobs/train").json()
            if [len(node["ranks"]) for node in job["nodes"]] == [2, 2, 0]:
                break
            assert time.monotonic() < give_up, job
            time.sleep(0.05)
        assert (job["state"], job["live"]) == ("execute", True)
        assert 'perdure_job_nodes{job="train",standing="spare"} 1' in client.get("/metrics").text

        refused = client.post("/api/jobs/train/drain", json={"node": "n9"})
        assert (refused.status_code, "no node n9" in refused.text) == (409, True)
        assert client.post("/api/jobs/train/drain", json={"node": "n0"}).json() == {"done": True}
        running.job.wait_for_step(job["step"] + 5, attempt=1)
        metrics = client.get("/metrics").text
        assert 'perdure_job_nodes{job="train",standing="drained"} 1' in metrics
        assert 'perdure_job_restarts_total{job="train",cause="drained"} 1' in metrics
        assert client.post("/api/jobs/train/uncordon", json={"node": "n0"}).json() == {"done": True}
        assert client.post("/api/jobs/train/stop").json() == {"done": True}
        assert set(running.job.exit_codes()) == {143}
        job = client.get("/api/jobs/train").json()
        assert (job["state"], job["live"], job["exit_code"]) == ("stopped", False, 143)


@pytest.mark.timeout(300)
@pytest.mark.skipif(chromium() is None, reason="there is no chromium; on Debian: apt install chromium")
def test_the_page_follows_a_job_in_a_real_browser(running: Running, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as page:
        page.goto(running.url)
        page.wait("document.querySelector('tbody th a')")
        assert page.js("location.href") == f"{running.base}/jobs"  # and the token is gone from the address
        page.js("document.querySelector('tbody th a').click()")

        # The grid of ranks, and that it moves.
        page.wait("document.querySelectorAll('#ranks .cell').length === 4")
        assert page.js("document.querySelector('.pill').textContent") == "execute"
        title = page.js("document.querySelector('[data-rank=\"3\"]').title")
        assert title.startswith("rank 3 on n1: step ")
        page.wait(f"document.querySelector('[data-rank=\"3\"]').title !== {title!r}")
        assert page.js("document.querySelectorAll('.lane svg').length") == 1

        # A rank is killed: another attempt, other processes, and what happened in words. Focus stays where it was.
        page.js("document.getElementById('do-stop').focus()")
        pid = page.js("document.querySelector('[data-rank=\"1\"]').dataset.pid")
        running.job.kill_rank(2)
        page.wait("document.querySelectorAll('.lane svg').length === 2")
        page.wait("document.querySelector('#facts').innerText.includes('rank 2 on n1 was killed by SIGKILL')")
        page.wait(f"document.querySelectorAll('#ranks .cell[data-pid]:not([data-pid=\"{pid}\"])').length === 4")
        assert page.js("document.activeElement.id") == "do-stop"
        assert page.js("document.querySelectorAll('.lane svg rect.use-verify').length") == 1

        # Drain: it asks, by keyboard; the first answer is no.
        page.wait("document.querySelectorAll('#facts .good').length === 2")  # the second attempt is on its way
        page.js("document.getElementById('do-drain-n1').focus()")
        page.key("Enter")
        page.wait("document.getElementById('ask').open")
        assert "Drain node n1?" in page.js("document.getElementById('ask-text').textContent")
        page.key("Enter")
        page.wait("!document.getElementById('ask').open")
        assert page.js("document.querySelector('#node-n1 .standing').textContent") == "runs"
        page.click("#do-drain-n1")
        page.wait("document.getElementById('ask').open")
        page.click("#ask-yes")
        page.wait("document.querySelector('#node-n1 .standing').textContent === 'drained'")
        page.wait("document.querySelector('#ranks').innerText.includes('n2')")
        page.wait("document.getElementById('do-uncordon-n1')")
        running.job.wait_for_step(5, attempt=2)

        # What is refused is said.
        page.click("#do-drain-n0")
        page.wait("document.getElementById('ask').open")
        page.click("#ask-yes")
        page.wait("document.getElementById('said').textContent.includes('the job needs 2')")

        page.click("#do-stop")
        page.wait("document.getElementById('ask').open")
        page.click("#ask-yes")
        page.wait("document.querySelector('.pill').textContent === 'stopped'")
        assert page.js("document.querySelectorAll('button[data-url]').length") == 0
        assert set(running.job.exit_codes()) == {143}
        assert [each for each in page.errors if "409" not in each] == []


def test_a_console_that_others_could_reach_needs_a_token_of_its_own(tmp_path: Path) -> None:
    def refused(*words: str, **env: str) -> str:
        known = {key: value for key, value in os.environ.items() if key != "PERDURE_CONSOLE_TOKEN"}
        env = known | {"PERDURE_STATE": str(tmp_path), **env}
        done = subprocess.run([*CONSOLE, *words], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 64, done.stderr
        return done.stderr

    assert "can be reached by others" in refused("--host", "0.0.0.0")
    assert "16 or more" in refused("--host", "0.0.0.0", PERDURE_CONSOLE_TOKEN="short")
    assert "there is no job none" in refused("--job", "none")
    assert not (tmp_path / "console.token").exists()
