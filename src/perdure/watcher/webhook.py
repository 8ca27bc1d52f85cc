"""Tell people of verdicts: as a Slack message, or as alerts of Alertmanager's API v2, by a thread that may be slow.

The watcher hands a verdict over and goes on; it never waits for a network. Of an incident that changes faster than it
can be told only the newest state is sent. What cannot be delivered after some tries is counted and left: the event log
of the job keeps every verdict.

An alert is known by its labels. If an incident is seen to be something else, the old alert is resolved and a new one
raised; one that is not resolved ends by itself after a day.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from typing import Any, Final, Literal

from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError
from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.labels import CLASSES, Action
from perdure.watcher.web import opener, whole_url

__all__ = ["Webhook", "alert_labels", "alertmanager_alerts", "slack_message"]

_MOST_WAITING: Final = 128
_MOST_KNOWN: Final = 1024
_MOST_LOST_THREADS: Final = 4
_MOST_WAIT_S: Final = 60.0
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_ENDS_S: Final = 86400.0
_LONGEST: Final = 2000
_SIGNS: Final = {Stage.SUSPICION: "Suspicion", Stage.VERDICT: "Verdict", Stage.CLEARED: "Cleared"}


def slack_message(verdict: Verdict, *, job: str, link: str = "") -> dict[str, Any]:
    """The JSON that a Slack incoming webhook takes; also what Mattermost and Rocket.Chat take."""
    lines = [f"*{_SIGNS[verdict.stage]}* in job {_slack(job)}: {_slack(verdict.sentence)}"]
    if verdict.stage is not Stage.CLEARED:
        facts = [
            f"{_slack(CLASSES[verdict.label].means)} (`{verdict.label.value}`)",
            f"action: {verdict.action.value}",
            f"owner: {verdict.owner.value}",
            f"sure: {verdict.confidence:.0%}",
        ]
        if verdict.nodes:
            facts.append(f"nodes: {_slack(_some(verdict.nodes))}")
        if verdict.ranks:
            facts.append(f"ranks: {_some(tuple(map(str, verdict.ranks)))}")
        if verdict.step is not None:
            facts.append(f"step: {verdict.step}")
        lines.append(" | ".join(facts))
        lines += [f"> {_slack(one.sentence)}" for one in verdict.evidence[:3]]
    if link:
        lines.append(f"<{link}|{_slack(verdict.incident)}>")
    else:
        lines.append(f"incident {_slack(verdict.incident)}")
    return {"text": "\n".join(lines)[:_LONGEST]}


def alert_labels(verdict: Verdict, *, job: str) -> dict[str, str]:
    """What tells this alert from others: unchanged as long as the incident is seen to be the same."""
    labels = {
        "alertname": "PerdureVerdict",
        "job": job,
        "incident": verdict.incident,
        "fault": verdict.label.value,
        "owner": verdict.owner.value,
        "severity": _severity(verdict),
    }
    if verdict.nodes:
        labels["node"] = _some(verdict.nodes)
    return {key: value[:_LONGEST] for key, value in labels.items() if value}


def alertmanager_alerts(
    verdict: Verdict, *, job: str, wall_s: float, before: dict[str, str] | None = None, link: str = ""
) -> list[dict[str, Any]]:
    """The JSON for ``POST /api/v2/alerts``. ``wall_s``: now, in seconds since 1970; ``before``: the labels that the
    incident was told with last, whose alert ends if they are others now.
    """
    labels = alert_labels(verdict, job=job)
    cleared = verdict.stage is Stage.CLEARED
    if cleared and before is not None:
        labels = before
    alert: dict[str, Any] = {
        "labels": labels,
        "annotations": {
            "summary": verdict.sentence[:_LONGEST],
            "description": "\n".join(one.sentence for one in verdict.evidence[:8])[:_LONGEST],
            "stage": verdict.stage.value,
            "action": verdict.action.value,
            "confidence": f"{verdict.confidence:.2f}",
            "ranks": _some(tuple(map(str, verdict.ranks))),
        },
        "endsAt": _moment(wall_s if cleared else wall_s + _ENDS_S),
    }
    if not cleared:
        alert["startsAt"] = _moment(wall_s)
    if link:
        alert["generatorURL"] = link
    alerts = [alert]
    if before is not None and before != labels:
        alerts.insert(0, {"labels": before, "endsAt": _moment(wall_s)})
    return alerts


class Webhook:
    """Sends verdicts to ``url`` in the ``form`` that is taken there; `send` never waits.

    A try ends after ``timeout_s``, whatever the server does; refused connections, 5xx and 429 are tried again,
    ``tries`` times in all, each after twice the pause. Raises `CallError` for a URL that is not http or https.
    """

    def __init__(
        self,
        url: str,
        *,
        job: str,
        form: Literal["slack", "alertmanager"] = "slack",
        link: str = "",
        timeout_s: float = 5.0,
        tries: int = 4,
        pause_s: float = 1.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self._url = whole_url(url)
        if form not in ("slack", "alertmanager"):
            raise CallError(f"a webhook's form is 'slack' or 'alertmanager', not {form!r}")
        if not (timeout_s > 0 and tries >= 1 and pause_s >= 0):
            raise CallError("a webhook needs a timeout above 0, at least one try and no negative pause")
        self._form, self._job, self._link = form, job, link if link.startswith(("http://", "https://")) else ""
        self._timeout_s, self._tries, self._pause_s, self._clock = timeout_s, tries, pause_s, clock
        self._waiting: OrderedDict[str, Verdict] = OrderedDict()
        self._known: OrderedDict[str, dict[str, str]] = OrderedDict()
        self._more = threading.Condition()
        self._ending = threading.Event()
        self._busy = False
        self._lost: list[threading.Thread] = []
        self.sent = 0
        self.dropped = 0
        self.problem = ""
        "Why the last try that failed did; empty once a verdict was delivered."
        self._thread = threading.Thread(target=self._run, name="perdure-webhook", daemon=True)
        self._thread.start()

    def send(self, verdict: Verdict) -> None:
        """Have ``verdict`` told; it takes the place of what is still to be told of the same incident."""
        with self._more:
            self._waiting.pop(verdict.incident, None)
            self._waiting[verdict.incident] = verdict
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popitem(last=False)
                self.dropped += 1
            self._more.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all is told or given up; whether it is."""
        with self._more:
            return self._more.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    @property
    def undelivered(self) -> int:
        """Verdicts that are still to be told."""
        with self._more:
            return len(self._waiting) + self._busy

    def close(self, timeout_s: float = 5.0) -> None:
        """Tell what waits, for at most ``timeout_s``, and end."""
        self.drain(timeout_s)
        self._ending.set()
        with self._more:
            self._more.notify_all()
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._more:
                self._busy = False
                self._more.notify_all()
                self._more.wait_for(lambda: bool(self._waiting) or self._ending.is_set())
                if self._ending.is_set():
                    return
                _, verdict = self._waiting.popitem(last=False)
                self._busy = True
            problem = self._deliver(verdict)
            with self._more:
                self.problem = problem
                if problem:
                    self.dropped += 1
                else:
                    self.sent += 1

    def _deliver(self, verdict: Verdict) -> str:
        """Why it could not be; empty if it was."""
        body, labels = self._body(verdict)
        pause_s, problem = self._pause_s, ""
        for left in range(self._tries - 1, -1, -1):
            problem, again, at_least_s = self._try(body)
            if not problem:
                self._remember(verdict, labels)
                return ""
            with self._more:
                self.problem = problem
            if not again or left == 0:
                break
            if self._ending.wait(min(_MOST_WAIT_S, max(at_least_s, pause_s * random.uniform(0.8, 1.2)))):
                break
            pause_s *= 2
        return problem

    def _body(self, verdict: Verdict) -> tuple[bytes, dict[str, str]]:
        if self._form == "slack":
            return _json(slack_message(verdict, job=self._job, link=self._link)), {}
        before = self._known.get(verdict.incident)
        wall_s = self._clock.wall()
        alerts = alertmanager_alerts(verdict, job=self._job, wall_s=wall_s, before=before, link=self._link)
        return _json(alerts), alerts[-1]["labels"]

    def _remember(self, verdict: Verdict, labels: dict[str, str]) -> None:
        self._known.pop(verdict.incident, None)
        if labels and verdict.stage is not Stage.CLEARED:
            self._known[verdict.incident] = labels
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)

    def _try(self, body: bytes) -> tuple[str, bool, float]:
        """What went wrong, whether to try again, and after how long at least.

        The try runs in a thread of its own: a server that sends a byte now and then would hold it for ever.
        """
        self._lost = [thread for thread in self._lost if thread.is_alive()]
        if len(self._lost) >= _MOST_LOST_THREADS:
            return f"{self._host()} still holds {len(self._lost)} connections open", True, 0.0
        got: list[tuple[str, bool, float]] = []
        thread = threading.Thread(target=lambda: got.append(self._post(body)), name="perdure-webhook-try", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if got:
            return got[0]
        self._lost.append(thread)
        return self._late(), True, 0.0

    def _post(self, body: bytes) -> tuple[str, bool, float]:
        request = urllib.request.Request(
            self._url, data=body, headers={"Content-Type": "application/json", "User-Agent": "perdure"}, method="POST"
        )
        try:
            with opener().open(request, timeout=self._timeout_s) as answer:
                answer.read(1024)
            return "", False, 0.0
        except urllib.error.HTTPError as error:
            with error:
                wait_s = _seconds(error.headers.get("Retry-After", ""))
            if 300 <= error.code < 400:
                why = f"{self._host()} redirects ({error.code}), which is not followed: name that URL"
                return why, False, 0.0
            return f"{self._host()} answers {error.code}", error.code in _AGAIN, wait_s
        except TimeoutError:
            return self._late(), True, 0.0
        except Exception as error:  # no way to it, no HTTP, a bad certificate: whatever the library raises
            if isinstance(getattr(error, "reason", None), TimeoutError):
                return self._late(), True, 0.0
            return f"{self._host()} cannot be reached: {error}", True, 0.0

    def _late(self) -> str:
        return f"{self._host()} did not answer within {self._timeout_s:g} s"

    def _host(self) -> str:
        """The URL without its path, which is a secret where Slack takes messages."""
        return "/".join(self._url.split("/", 3)[:3]).rpartition("@")[2]


def _severity(verdict: Verdict) -> str:
    return "critical" if verdict.action is not Action.WARN and verdict.stage is not Stage.SUSPICION else "warning"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


def _slack(text: str) -> str:
    return text[:500].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def _some(words: tuple[str, ...]) -> str:
    return ", ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")


def _moment(wall_s: float) -> str:
    return datetime.datetime.fromtimestamp(wall_s, datetime.UTC).isoformat(timespec="milliseconds")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        return min(_MOST_WAIT_S, max(0.0, float(text)))
    return 0.0
