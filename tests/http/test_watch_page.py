"""The page of the watch, its API and metrics, over a record of a watcher; in a real browser, and Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from browser import Browser, chromium
from starlette.testclient import TestClient

from perdure.http.serve import console
from perdure.supervisor import JobFolder
from perdure.supervisor.asking import askers_in
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.prometheus import parse
from perdure.watcher.recording import HEAT, METRICS, VERDICTS, WatchRecord
from perdure.watcher.samples import NodeLook, RankSample

Keep = Callable[..., JobFolder]

TOKEN = "sixteen-or-more-of-it"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
RULES = Path(__file__).resolve().parents[2] / "docs" / "alerts" / "perdure.rules.yml"


class Fake:
    """A clock that is set."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def looks(now_s: float, *, slow: int | None = None, stopped: int | None = None, nodes: int = 2) -> list[NodeLook]:
    def sample(rank: int) -> RankSample:
        own = 0.13 if rank == slow else 0.1
        state = "T" if rank == stopped else "S"
        return RankSample(
            rank=rank, node=f"n{rank // 4}", at_s=now_s, state=state, step=int(now_s), phase="forward", step_s=0.13,
            compute_s=own, wait_s=0.13 - own, beat=1, beat_age_s=0.2,
        )  # fmt: skip

    return [NodeLook(node=f"n{n}", samples=tuple(sample(4 * n + i) for i in range(4))) for n in range(nodes)]


def verdict(stage: Stage, at_s: float, **fields: Any) -> Verdict:
    found = Evidence(
        kind="slow_rank",
        at_s=at_s - 2,
        sentence="rank 5 on n1 computes 1.30 times <as> long",
        ranks=(5,),
        nodes=("n1",),
    )
    usual = {
        "incident": "0.1", "stage": stage, "label": Label.STRAGGLER, "owner": Owner.NODE, "action": Action.EVICT,
        "confidence": 0.85, "sentence": "rank 5 on n1 computes 1.30 times <as> long", "at_s": at_s, "ranks": (5,),
        "nodes": ("n1",), "evidence": (found,),
    }  # fmt: skip
    return Verdict(**{**usual, **fields})


def write(folder: Path, *, seconds: int = 60, cleared: bool = False) -> Path:
    """A record of eight ranks, of which rank 5 is slow from second 30 on and rank 2 is stopped at the end."""
    clock = Fake(1000.0 + seconds)
    with WatchRecord(folder, job="train", every_s=3600.0, clock=clock) as record:
        still_open: list[Verdict] = []
        for second in range(seconds):
            now_s, told = 1000.0 + second, []
            if second in (35, 40):
                told = [verdict(Stage.SUSPICION if second == 35 else Stage.VERDICT, now_s)]
                still_open = told
            if cleared and second == 50:
                told, still_open = [verdict(Stage.CLEARED, now_s)], []
            # told as late after the fact as it was: the record dates it with the clock of now
            told = [msgspec.structs.replace(each, wall_s=time.time() - (seconds - second)) for each in told]
            slow, stopped = (5 if second >= 30 else None), (2 if second >= seconds - 5 else None)
            record.give(told, looks=looks(now_s, slow=slow, stopped=stopped), still_open=still_open, now_s=now_s)
    return folder


def client_of(**folders: Path) -> TestClient:
    app = console(list, token=TOKEN, records=lambda: folders)
    return TestClient(app, headers=BEARER)


def test_the_api_tells_incidents_and_ranks(tmp_path: Path) -> None:
    client = client_of(train=write(tmp_path / "r"))
    (watched,) = client.get("/api/watch").json()["watched"]
    assert (watched["name"], watched["heat"], [each["incident"] for each in watched["open"]]) == (
        "train",
        True,
        ["0.1"],
    )
    (incident,) = client.get("/api/watch/train").json()["incidents"]
    assert (incident["stage"], incident["ranks"], incident["action"]) == ("verdict", [5], "evict")
    assert [each["stage"] for each in incident["told"]] == ["suspicion", "verdict"]
    assert 4.0 < incident["told"][1]["at"] - incident["began_at"] < 6.0
    found = [each["at"] for each in incident["evidence"]]
    assert [each["at"] - at for each, at in zip(incident["told"], found, strict=True)] == pytest.approx([2.0, 2.0])
    whole = client.get("/api/watch/train/incidents/0.1").json()
    assert "Why this verdict" in whole["explanation"]
    heat = client.get("/api/watch/train/heat").json()
    assert [row["name"] for row in heat["record"]["rows"]] == [f"rank {i}" for i in range(8)]
    assert client.get("/api/watch/train/heat", params={"since": heat["stamp"]}).status_code == 204
    assert client.get("/api/watch/none").status_code == 404
    assert client.get("/api/watch/train/incidents/9.9").status_code == 404
    assert client.get("/api/watch/train/heat", headers={"Authorization": "Bearer no"}).status_code == 401


def test_the_page_escapes_and_says_why(tmp_path: Path) -> None:
    client = client_of(train=write(tmp_path / "r"), done=write(tmp_path / "d", cleared=True))
    html = client.get("/watch/train").text
    assert "&lt;as&gt;" in html
    assert "<as>" not in html
    assert html.count('<rect class="stage-') == 2
    assert html.count('<rect class="mark"') == 2
    assert "Why this verdict" in html
    assert "evict, for node" in html
    assert "pill-cleared" in client.get("/watch/done").text
    listed = client.get("/watch").text
    assert "nothing is wrong" in listed
    assert 'href="/watch/train"' in listed
    assert client.get("/watch/none").status_code == 404


def test_a_file_of_verdicts_alone_has_a_page_too(tmp_path: Path) -> None:
    file = write(tmp_path / "r") / VERDICTS
    html = client_of(run=file).get("/watch/run").text
    assert "only verdicts" in html
    assert "Why this verdict" in html


def test_what_a_run_before_told_under_the_same_number_stays_apart(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", cleared=True)
    (folder / VERDICTS).write_bytes(2 * (folder / VERDICTS).read_bytes() + b"torn {\n")
    told = client_of(train=folder).get("/api/watch/train").json()["incidents"]
    assert [(each["incident"], each["stage"]) for each in told] == [("0.1", "cleared"), ("0.1-2", "cleared")]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"form": 2}', b"[]"])
def test_a_damaged_record_is_said_and_not_drawn(tmp_path: Path, damage: bytes) -> None:
    folder = write(tmp_path / "r")
    (folder / HEAT).write_bytes(damage)
    client = client_of(train=folder, fine=write(tmp_path / "f"))
    assert client.get("/api/watch/train/heat").status_code == 500
    assert "is no record of ranks" in client.get("/watch/train").text
    assert client.get("/watch").status_code == 200
    assert client.get("/watch/fine").status_code == 200


def test_the_page_of_a_job_tells_of_the_watch_over_it(tmp_path: Path, keep: Keep) -> None:
    folder = keep().path
    app = console(lambda: askers_in(tmp_path / "state"), token=TOKEN, records=lambda: {"old": folder})
    client = TestClient(app, headers=BEARER)
    write(folder)
    html = client.get("/jobs/old").text
    assert 'href="/watch/old"' in html
    assert "1.30 times &lt;as&gt; long" in html


def test_metrics_of_watchers_that_are_at_work_are_on_the_page(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a"), write(tmp_path / "b")
    text = client_of(one=one, other=other).get("/metrics").text
    page = parse(text)
    assert page.left_out == 0
    assert {each.labels["job"]: each.value for each in page.of("perdure_watch_up")} == {"one": 1, "other": 1}
    assert {each.labels["node"] for each in page.of("perdure_watch_verdict")} == {"n1"}
    assert len(page.of("perdure_watch_rank_compute_seconds")) == 16
    assert text.count("# TYPE perdure_watch_up gauge") == 1
    lines = ('perdure_job_step{job="x"} 9', "# HELP perdure_watch_up a", "# TYPE perdure_watch_up gauge",
             'perdure_watch_up{job="other",secret="1"} 5', 'perdure_watch_up{job="other"} 1', "")  # fmt: skip
    (one / METRICS).write_text("\n".join(lines))
    os.utime(other / METRICS, (time.time() - 60, time.time() - 60))
    found = parse(client_of(one=one, other=other).get("/metrics").text)
    assert [(each.name, dict(each.labels)) for each in found.metrics] == [("perdure_watch_up", {"job": "one"})]


@contextmanager
def console_over(folder: Path, home: Path) -> Iterator[str]:
    """The address of a console that was started as people do."""
    env = os.environ | {"PERDURE_STATE": str(home), "PERDURE_CONSOLE_TOKEN": TOKEN}
    words = [sys.executable, "-m", "perdure", "console", "--watch", str(folder)]
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.timeout(300)
@pytest.mark.skipif(chromium() is None, reason="there is no chromium; on Debian: apt install chromium")
def test_the_heat_map_is_drawn_and_tells_what_is_under_the_pointer(tmp_path: Path) -> None:
    folder = write(tmp_path / "train")
    with console_over(folder, tmp_path / "state") as url, Browser(tmp_path / "profile") as page:
        page.goto(url)
        page.wait("document.querySelector('nav a[href=\"/watch\"]')")
        page.js("document.querySelector('nav a[href=\"/watch\"]').click()")
        page.wait("document.querySelector('tbody th a')")
        page.js("document.querySelector('tbody th a').click()")
        page.wait("document.getElementById('heat')?.dataset.drawn")

        def colour(x: float, row: int) -> list[int]:
            """Of the pixel in the middle of a row's cell, ``x`` being a share of the width."""
            return page.js(
                "(() => { const c = document.querySelector('#heat canvas'), scale = devicePixelRatio || 1, "
                f"h = (c.height / scale - 8) / 8; return [...c.getContext('2d').getImageData("
                f"Math.floor(c.width * {x}), Math.floor((8 + ({row} + .5) * h) * scale), 1, 1).data].slice(0, 3); }})()"
            )

        slow, early = colour(0.8, 5), colour(0.3, 5)
        assert slow[0] > 180 > slow[2]  # the orange of a slow one
        assert max(early) - min(early) < 30  # the grey of one that is as its peers
        assert max(colour(0.8, 4)) - min(colour(0.8, 4)) < 30
        assert max(colour(0.99, 2)) < 40  # stopped, in ink
        page.point("#heat canvas", 0.8, (8 + 5.5 * 22) / (8 + 8 * 22))
        page.wait("document.getElementById('heat-said').textContent.startsWith('rank 5 on n1')")
        said = page.js("document.getElementById('heat-said').textContent")
        ratio = float(re.search(r"own time ([0-9.]+) times that of its peers, works, waits 0 % of a step", said)[1])  # type: ignore[index]
        assert ratio == pytest.approx(1.3, rel=0.02)
        page.js("document.querySelector('#heat canvas').focus()")
        page.key("ArrowUp")
        page.wait("document.getElementById('heat-said').textContent.startsWith('rank 4 on n1')")

        # What it does, and the whole run.
        page.js("document.querySelector('input[value=doing]').click()")
        assert colour(0.8, 5) == [0, 158, 115]
        assert "in kernel" in page.js("document.querySelector('#heat .legend').innerText")
        page.js("document.querySelector('input[value=whole]').click()")
        page.key("ArrowUp")

        # An incident is opened, says why, and stays open and chosen while the page goes on.
        page.click("details summary")
        page.wait("document.querySelector('details').open")
        assert "Why this verdict" in page.js("document.querySelector('details pre').innerText")
        before = page.js("document.getElementById('heat').dataset.drawn")
        write(folder, seconds=70)
        page.wait(f"document.getElementById('heat').dataset.drawn !== {json.dumps(before)}")
        time.sleep(2.0)
        assert page.js("document.getElementById('incident-0.1').open")
        assert page.js("document.querySelector('input[name=measure]:checked').value") == "doing"
        page.dark(True)
        page.wait("document.querySelector('#heat .legend').dataset.key.includes('true')")
        page.js("document.querySelector('input[value=ratio]').click()")
        assert min(colour(0.99, 2)) > 220  # ink is white in the dark
        assert page.errors == []


@pytest.mark.timeout(300)
def test_a_real_prometheus_scrapes_the_console_and_fires(tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("NOT TESTED: prometheus is missing: apt install prometheus")
    folder = write(tmp_path / "train")
    with console_over(folder, tmp_path / "state") as url:
        target = url.split("/")[2]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "console",
                    "honor_labels": True,
                    "authorization": {"credentials": TOKEN},
                    "static_configs": [{"targets": [target]}],
                }
            ],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        words = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        with open(tmp_path / "log", "wb") as log:
            process = subprocess.Popen([program, *words, "--web.listen-address=127.0.0.1:0"], stderr=log)
        try:
            door = _listening(process, tmp_path / "log")
            give_up = time.monotonic() + 90
            while True:
                os.utime(folder / METRICS)  # as a watcher does that is at work
                fired = _asked(f"http://127.0.0.1:{door}/api/v1/alerts")["alerts"]
                names = {(each["labels"]["alertname"], each["state"]) for each in fired}
                if ("PerdureVerdict", "firing") in names:
                    break
                assert time.monotonic() < give_up, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.5)
        finally:
            process.terminate()
            process.wait(30)
    assert {name for name, state in names if state == "firing"} == {"PerdureVerdict"}
    (alert,) = [each for each in fired if each["labels"]["alertname"] == "PerdureVerdict"]
    assert (alert["labels"]["job"], alert["labels"]["node"]) == ("train", "n1")


def _listening(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port at which ``process`` listens, as the kernel tells it."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        assert process.poll() is None, log.read_text()
        found = re.search(r"[Ll]istening on.*?127\.0\.0\.1:(\d+)", log.read_text())
        if found and found[1] != "0":
            return int(found[1])
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def _asked(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]
    except OSError:
        return {"alerts": []}
