"""What a watcher has seen and what it says, given out: sentences on stderr, lines of JSON, webhooks, ``/metrics``.

The commands of `perdure watch` that watch share these flags (`add_outlet_flags`) and call `Outlets.give` at each look.
No outlet stalls or ends the watch: what cannot be delivered is said once on stderr, and once more when it works again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.cli.watch_live import LiveView
    from perdure.watcher.evidence import Verdict
    from perdure.watcher.exposition import MetricsPage
    from perdure.watcher.line_writer import LineWriter
    from perdure.watcher.recording import WatchRecord
    from perdure.watcher.samples import NodeLook
    from perdure.watcher.webhook import Webhook

__all__ = ["SECRETS", "Outlets", "add_outlet_flags"]

SECRETS = ("PERDURE_WEBHOOK", "PERDURE_METRICS_TOKEN")
"""Variables that are for the watcher alone, and not handed on to what it runs."""

_MOST_ACTED_ON = 1024
_LEAST_TOKEN = 16
_END_S = 5.0


def add_outlet_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where verdicts and numbers go."""
    group = parser.add_argument_group("where it is told")
    group.add_argument(
        "--live",
        action="store_true",
        help="show ranks and open incidents at the bottom of the terminal, below what is printed; where stderr is no "
        "terminal there are plain lines",
    )
    group.add_argument("--name", metavar="NAME", help="what the job is called in messages and metrics")
    group.add_argument("--json", metavar="FILE", help="write each verdict to FILE, too, as a line of JSON")
    group.add_argument(
        "--record", metavar="DIR", help="keep in DIR what perdure console --watch DIR shows: ranks over time, verdicts"
    )
    group.add_argument(
        "--webhook",
        metavar="URL",
        help="post verdicts to URL. Others on this machine can see it in the list of processes: put it into the "
        "environment as PERDURE_WEBHOOK instead where it is a secret",
    )
    group.add_argument(
        "--webhook-form",
        choices=("slack", "alertmanager"),
        default="slack",
        help="as messages of Slack (also taken by Mattermost and Rocket.Chat), or as alerts to Alertmanager, whose URL "
        "ends in /api/v2/alerts (slack)",
    )
    group.add_argument(
        "--webhook-suspicions", action="store_true", help="post suspicions, too, not only what is sure enough to act on"
    )
    group.add_argument(
        "--webhook-plain", action="store_true", help="let a Slack message go to another machine by http, unencrypted"
    )
    group.add_argument("--metrics-port", type=int, metavar="PORT", help="serve /metrics for Prometheus; 0: a free port")
    group.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="where to listen for it (127.0.0.1); where other machines reach it they must show the token of "
        "--metrics-token-file or PERDURE_METRICS_TOKEN",
    )
    group.add_argument("--metrics-token-file", metavar="FILE", help="what Prometheus has as credentials_file")


class Outlets:
    """Where a watcher tells. Make it with `of`; `give` after each look, `close` at the end. One thread calls."""

    def __init__(self, *, job: str) -> None:
        from perdure.watcher.line_writer import LineWriter

        self.job = job
        self._stack = ExitStack()
        self._stderr = LineWriter(sys.stderr.fileno())
        self._stack.callback(self._stderr.close)
        self._json: LineWriter | None = None
        self._json_name = ""
        self._webhook: Webhook | None = None
        self._suspicions = False
        self._acted_on: OrderedDict[str, None] = OrderedDict()
        self._failing: dict[str, str] = {}
        self.view: LiveView | None = None
        "The view on the terminal, if there is one: what else is to be read there must go through it."
        self._page: MetricsPage | None = None
        self._record: WatchRecord | None = None

    @classmethod
    def of(cls, args: argparse.Namespace, *, job: str) -> Outlets:
        """The outlets that ``args`` name; ``job`` is its name if they give none.

        Raises `CallError` if one of them cannot be: a file that cannot be written, a URL, a port that is taken.
        """
        outlets = cls(job=args.name or job)
        try:
            if args.live and sys.stderr.isatty():
                outlets._open_view()
            if args.json is not None:
                outlets._open_json(args.json)
            url = args.webhook or os.environ.get("PERDURE_WEBHOOK", "")
            if url:
                outlets._open_webhook(url, args)
            if args.metrics_port is not None:
                outlets._open_metrics(args)
            if args.record is not None:
                outlets._open_record(Path(args.record))
        except BaseException:
            outlets.close()
            raise
        return outlets

    def _open_view(self) -> None:
        from perdure.cli.watch_live import LiveView

        self.view = self._stack.enter_context(LiveView(job=self.job))

    def _open_json(self, name: str) -> None:
        from perdure.watcher.line_writer import LineWriter

        try:
            with open(name, "ab", buffering=0) as file:
                self._json, self._json_name = LineWriter(file.fileno()), name
        except OSError as error:
            raise CallError(f"cannot write {name}: {error.strerror}") from error
        self._stack.callback(self._json.close)

    def _open_webhook(self, url: str, args: argparse.Namespace) -> None:
        from urllib.parse import urlsplit

        from perdure.watcher.metrics_server import is_own
        from perdure.watcher.web import whole_url
        from perdure.watcher.webhook import Webhook

        parts = urlsplit(whole_url(url))
        slack = args.webhook_form == "slack"
        if slack and parts.scheme == "http" and not is_own(parts.hostname or "") and not args.webhook_plain:
            raise CallError(
                "the path of a Slack webhook is its password, and http would send it for all to read: give an https "
                "URL, or --webhook-plain if that is meant"
            )
        self._webhook = Webhook(url, job=self.job, form=args.webhook_form)
        self._suspicions = args.webhook_suspicions
        self._stack.callback(self._webhook.close, 0.1)  # `close` has waited before

    def _open_metrics(self, args: argparse.Namespace) -> None:
        from perdure.watcher.exposition import MetricsPage
        from perdure.watcher.metrics_server import MetricsServer

        token = os.environ.get("PERDURE_METRICS_TOKEN", "")
        if args.metrics_token_file:
            try:
                token = Path(args.metrics_token_file).read_text().strip()
            except OSError as error:
                raise CallError(f"cannot read {args.metrics_token_file}: {error.strerror}") from error
        if (token or args.metrics_token_file) and len(token) < _LEAST_TOKEN:
            raise CallError(f"the token of /metrics has {len(token)} characters; it must have {_LEAST_TOKEN} or more")
        self._page = MetricsPage(job=self.job)
        server = MetricsServer(self._page.text, host=args.metrics_host, port=args.metrics_port, token=token)
        self._stack.callback(server.close)
        self.say(f"metrics at {server.url}")

    def _open_record(self, folder: Path) -> None:
        from perdure.watcher.recording import VERDICTS, WatchRecord

        if (folder / VERDICTS).exists():  # of a run before, whose incidents had the same numbers
            try:
                os.replace(folder / VERDICTS, folder / f"{VERDICTS}.before")
            except OSError as error:
                raise CallError(f"cannot write into {folder}: {error.strerror}") from error
        self._record = self._stack.enter_context(WatchRecord(folder, job=self.job))

    def say(self, sentence: str) -> None:
        """Tell people a sentence."""
        if self.view is not None:
            self.view.say(f"perdure watch: {sentence}")
        else:
            self._stderr.write(f"perdure watch: {sentence}".encode(errors="replace"))

    def give(
        self,
        told: Sequence[Verdict],
        *,
        looks: Sequence[NodeLook] = (),
        still_open: Sequence[Verdict] = (),
        now_s: float,
    ) -> None:
        """Give out what is new. ``told``: verdicts that are new or have changed; ``looks``: what they were made from;
        ``still_open``: all incidents that are open; ``now_s``: CLOCK_MONOTONIC, as ``at_s`` of the verdicts.
        """
        import msgspec

        from perdure.watcher.recording import dated

        wall_s = time.time()
        told = [dated(each, now_s=now_s, wall_s=wall_s) for each in told]
        for verdict in told:
            self.say(f"{verdict.stage.value}: {verdict.sentence} [{verdict.incident}]")
            if self._json is not None:
                self._json.write(msgspec.json.encode(verdict))
            if self._webhook is not None and self._posted(verdict):
                self._webhook.send(verdict)
        if self.view is not None:
            self.view.give(looks, still_open=still_open, now_s=now_s)
        if self._page is not None:
            self._page.give(told, looks=looks, still_open=still_open, now_s=now_s)
        if self._record is not None:
            self._record.give(told, looks=looks, still_open=still_open, now_s=now_s)
        self._tell_failures()

    def _posted(self, verdict: Verdict) -> bool:
        """Whether people are called: for what is to be acted on, and when that is over."""
        from perdure.watcher.evidence import Stage

        if self._suspicions:
            return True
        if verdict.stage is Stage.CLEARED:
            return self._acted_on.pop(verdict.incident, 0) is None
        if verdict.stage is Stage.VERDICT:
            self._acted_on[verdict.incident] = None
            if len(self._acted_on) > _MOST_ACTED_ON:
                self._acted_on.popitem(last=False)
        return verdict.incident in self._acted_on

    def _tell_failures(self) -> None:
        problems: Mapping[str, str] = {
            f"verdicts cannot be written to {self._json_name}": self._json.problem if self._json else "",
            "the webhook does not take verdicts": self._webhook.problem if self._webhook else "",
            "the record cannot be written": self._record.problem if self._record else "",
        }
        for what, why in problems.items():
            if bool(why) == (what in self._failing):
                continue
            if why:
                self._failing[what] = why
                self.say(f"{what}: {why}; the watch goes on")
            else:
                del self._failing[what]
                self.say(f"that {what} is over")

    def close(self) -> None:
        """Tell what waits, for some seconds at most, and end."""
        if self._json is not None:
            self._json.drain(2.0)
        if self._webhook is not None:
            self._webhook.drain(_END_S)
        self._tell_failures()
        if self._webhook is not None and (left := self._webhook.undelivered):
            self.say(f"the webhook has not taken {left} of the verdicts in {_END_S:g} s; they are not told there")
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
