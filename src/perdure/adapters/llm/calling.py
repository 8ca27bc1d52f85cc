"""Call an endpoint: again when it is busy, as it asks and as the deadline allows, and errors that name no secret."""

from __future__ import annotations

import email.utils
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.adapters.llm.address import Address
from perdure.adapters.llm.http import Response, post
from perdure.clock import Clock
from perdure.errors import CallError, DeadlineExceeded, LinkLost, TryAgain

__all__ = ["Caller", "Refused"]

_BUSY: Final = frozenset({408, 429, 502, 503, 504, 529})
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 20.0
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")


class Refused(CallError):
    """The endpoint says that the request is wrong; facts: ``status``, ``said`` (its words, cut short)."""

    kind = "refused"


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls one address. ``tries`` is the most that one call may be sent."""

    address: Address
    clock: Clock
    tries: int
    context: ssl.SSLContext | None

    def call(self, path: str, value: Mapping[str, Any], *, deadline_s: float, most_bytes: int) -> Any:
        """Return the JSON that comes back.

        Raises `DeadlineExceeded`, `LinkLost`, `TryAgain` where the endpoint is busy or broken, `Refused` where it says
        that the request is wrong, `CallError` for a wrong key, a wrong path, a redirect or an answer that is no JSON.
        """
        end = self.clock.monotonic() + deadline_s
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, self.tries + 1):
            left = end - self.clock.monotonic()
            if left <= 0:
                break
            try:
                response = post(self.address, path, value, deadline_s=left, most_bytes=most_bytes, context=self.context)
            except LinkLost:
                if attempt == self.tries or self.clock.monotonic() + wait_s >= end:
                    raise
                self.clock.sleep(wait_s)
            else:
                if response.status not in _BUSY:
                    return self._value(response)
                asked_s = _retry_after(response, self.clock)
                pause_s = wait_s if asked_s is None else asked_s
                if attempt == self.tries or self.clock.monotonic() + pause_s >= end:
                    raise TryAgain(
                        f"{self.address.shown} is busy (status {response.status}): {self._said(response)}; try again"
                        f" after {pause_s:.3g} s",
                        status=response.status,
                        after_s=pause_s,
                    )
                self.clock.sleep(pause_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise DeadlineExceeded(
            f"{self.address.shown} gave no answer within {deadline_s:.3g} s; try again", missing=[self.address.shown]
        )

    def _value(self, response: Response) -> Any:
        status, where = response.status, self.address.shown
        if 300 <= status < 400:
            raise CallError(f"{where} points elsewhere (status {status}), which is not followed; give that URL instead")
        if status in (401, 403):
            raise CallError(f"{where} refuses the key (status {status}): {self._said(response)}", status=status)
        if status >= 500:
            raise TryAgain(f"{where} failed (status {status}): {self._said(response)}; try again", status=status)
        if status >= 400:
            said = self._said(response)
            raise Refused(f"{where} refuses the request (status {status}): {said}", status=status, said=said)
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise CallError(f"{where} did not answer with JSON; is its base URL right?") from error

    def _said(self, response: Response) -> str:
        """What an error says, on one line, cut short, and without the key if it repeats it."""
        text = response.body[:4000].decode("utf-8", "replace")
        try:
            found = json.loads(response.body)["error"]
            text = str(found["message"] if isinstance(found, dict) else found)
        except (ValueError, KeyError, TypeError, RecursionError):  # then it is shown as it came
            pass
        if self.address.key is not None:
            text = text.replace(self.address.key, "(the key)")
        return _UNSEEN.sub(" ", text)[:300].strip() or "nothing"


def _retry_after(response: Response, clock: Clock) -> float | None:
    given = response.headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit():
        return float(given[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - clock.wall())
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
