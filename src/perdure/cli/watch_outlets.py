"""What a watcher has seen and what it says, given out: sentences on stderr, lines of JSON, webhooks, ``/metrics``.

The commands of `perdure watch` that watch share these flags (`add_outlet_flags`) and call `Outlets.give` after each look.
No outlet stalls or ends the watch: what cannot be delivered is said once on stderr, and once more when it works again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.cli.lines import Lines
    from perdure.watcher.evidence import Verdict
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
    group.add_argument("--name", metavar="NAME", help="what the job is called in messages and metrics")
    group.add_argument("--json", metavar="FILE", help="write each verdict to FILE, too, as a line of JSON")
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
        from perdure.cli.lines import Lines

        self.job = job
        self._stack = ExitStack()
        self._stderr = Lines(sys.stderr.fileno())
        self._stack.callback(self._stderr.close)
        self._json: Lines | None = None
        self._json_name = ""
        self._webhook: Webhook | None = None
        self._suspicions = False
        self._acted_on: OrderedDict[str, None] = OrderedDict()
        self._failing: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._looks: dict[str, NodeLook] = {}
        self._open: tuple[Verdict, ...] = ()
        self._page: tuple[object, str] = (None, "")
        self._looked = 0

    @classmethod
    def of(cls, args: argparse.Namespace, *, job: str) -> Outlets:
        """The outlets that ``args`` name; ``job`` is its name if they give none.

        Raises `CallError` if one of them cannot be: a file that cannot be written, a URL, a port that is taken.
        """
        outlets = cls(job=args.name or job)
        try:
            if args.json is not None:
                outlets._open_json(args.json)
            url = args.webhook or os.environ.get("PERDURE_WEBHOOK", "")
            if url:
                outlets._open_webhook(url, args)
            if args.metrics_port is not None:
                outlets._open_metrics(args)
        except BaseException:
            outlets.close()
            raise
        return outlets

    def _open_json(self, name: str) -> None:
        from perdure.cli.lines import Lines

        try:
            with open(name, "ab", buffering=0) as file:
                self._json, self._json_name = Lines(file.fileno()), name
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
        self._stack.callback(self._webhook.close, _END_S)

    def _open_metrics(self, args: argparse.Namespace) -> None:
        from perdure.watcher.metrics_server import MetricsServer

        token = os.environ.get("PERDURE_METRICS_TOKEN", "")
        if args.metrics_token_file:
            try:
                token = Path(args.metrics_token_file).read_text().strip()
            except OSError as error:
                raise CallError(f"cannot read {args.metrics_token_file}: {error.strerror}") from error
        if (token or args.metrics_token_file) and len(token) < _LEAST_TOKEN:
            raise CallError(f"the token of /metrics has {len(token)} characters; it must have {_LEAST_TOKEN} or more")
        server = MetricsServer(self.metrics, host=args.metrics_host, port=args.metrics_port, token=token)
        self._stack.callback(server.close)
        self.say(f"metrics at {server.url}")

    def say(self, sentence: str) -> None:
        """Tell people a sentence."""
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

        for each in looks:
            self._looks[each.node] = each
        self._open = tuple(still_open)
        self._looked += 1
        wall_s = time.time()
        for verdict in told:
            self._counts[verdict.label.value] += 1
            dated = msgspec.structs.replace(verdict, wall_s=wall_s - (now_s - verdict.at_s))
            self.say(f"{dated.stage.value}: {dated.sentence} [{dated.incident}]")
            if self._json is not None:
                self._json.write(msgspec.json.encode(dated))
            if self._webhook is not None and self._posted(dated):
                self._webhook.send(dated)
        self._tell_failures()

    def metrics(self) -> str:
        """The page of metrics as of the last look. From any thread."""
        from perdure.watcher.exposition import watch_metrics

        looked, looks = self._looked, list(self._looks.values())
        if self._page[0] != looked:
            text = watch_metrics(
                job=self.job,
                verdicts=self._open,
                ranks=[sample for look in looks for sample in look.samples],
                nodes=[look.host for look in looks if look.host is not None],
                told=dict(self._counts),
            )
            self._page = looked, text
        return self._page[1]

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
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
