"""The store far away behind the one that commits: what is carried there, and how a lost home comes back from it.

The first URL of a run commits. A URL of ``tiers`` holds a copy of some of its steps, which is a run by itself
(`perdure.upkeep.carrying`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from perdure.checkpoint.messages import Carry
from perdure.errors import BlobMissing, CallError, PerdureError, Superseded
from perdure.store import Note, Run, Store, StoreUrl
from perdure.store.places import EPOCHS, MARKER, SLOTS
from perdure.upkeep.carrying import catch_up
from perdure.upkeep.keep import Keep, as_rules, text_of

__all__ = ["KEEP_ALL", "Remote", "remote_of"]

KEEP_ALL = "all"
Place: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where steps are carried to, and which: with ``every`` those whose number it divides, else the newest as they can
    be. ``keep`` prunes the copy ("" nothing), ``bytes_per_s`` bounds what is sent.
    """

    url: str
    store: Store
    every: int | None = None
    keep: str = ""
    bytes_per_s: float | None = None

    def carries(self, step: int, *, asked: bool) -> Carry | None:
        """What is to become of a save of ``step`` once it is committed; None if it is not to be carried."""
        due = self.every is not None and step % self.every == 0
        if not (asked or due) and self.every is not None:
            return None
        return Carry(url=self.url, keep=self.keep, bytes_per_s=self.bytes_per_s, asked=asked or due)

    def opened(self, tell: Callable[[Note], None]) -> Run:
        """The copy. Raises `BlobMissing` if there is none yet."""
        return Run.open(self.store, create=False, tell=tell)

    def bring_home(self, here: Store, tell: Callable[[Note], None]) -> PerdureError | None:
        """Before the run ``here`` is opened to be trained: if it was lost, or is older than the copy, let it catch up.

        Called by rank 0. Returns why the copy cannot be read now, if home does without. Raises what must not be taken
        for "nothing to restore": a home that is empty while the copy cannot be read; `CallError` for a copy of another
        run.
        """
        begun = here.size(MARKER) is not None
        try:
            far = self.opened(tell)
        except BlobMissing:
            if not begun and (self.store.names(SLOTS) or self.store.names(EPOCHS)):
                raise
            return None  # nothing was carried yet
        except PerdureError as error:
            if begun:
                tell(Note(f"nothing is taken from {self.url}: {error}", self.url))
                return error
            raise type(error)(
                f"{here} is empty, and its copy in {self.url} cannot be read ({error}): nobody knows whether there is "
                "a step to go on from; try again, or leave out tiers= to begin from scratch",
                **error.facts,
            ) from error
        if not begun:
            catch_up(here, far)
            tell(Note(f"{here} was empty: it goes on as the run that lies in {self.url}", self.url))
            return None
        home = Run.open(here, create=False, tell=tell)
        if home.marker.run != far.marker.run:
            raise CallError(
                f"{self.url} holds another run ({far.marker.run[:8]}) than {here} ({home.marker.run[:8]}); give each "
                "run a place of its own"
            )
        if _top(far) > _top(home):
            try:
                catch_up(here, far)
                tell(Note(f"{here} was older than its copy in {self.url}, and has caught up with it", self.url))
            except Superseded as error:
                tell(Note(f"nothing is taken from {self.url}: {error}", self.url))
        return None


def _top(run: Run) -> int:
    """The highest slot, readable or not."""
    return next(run.slots(), 0)


def remote_of(
    url: StoreUrl,
    tiers: Place | Sequence[Place],
    *,
    every: int | None,
    keep: Keep | None,
    home_keep: Keep | None,
    bytes_per_s: float | None,
    agent: bool,
    open_store: Callable[[StoreUrl], Store],
) -> Remote | None:
    """The `Remote` that a user has asked for; ``keep`` is that of the first store unless it is given.

    Raises `CallError` for what makes no sense, before anything is touched.
    """
    given = [tiers] if isinstance(tiers, str | os.PathLike) else list(tiers)
    if not given:
        for name, value in (("remote_every", every), ("remote_keep", keep), ("remote_bytes_per_s", bytes_per_s)):
            if value is not None:
                raise CallError(f'{name} says how steps are carried to a remote store; name it: tiers=["s3://..."]')
        return None
    if len(given) > 1:
        raise CallError(f"tiers names {len(given)} stores; one remote store can stand behind the one that commits")
    place = StoreUrl.parse(given[0])
    if str(place) == str(url):
        raise CallError(f"tiers names {place}, which is the store that commits; name another one")
    if place.scheme == "ram" and agent:
        raise CallError("a ram: store is of one process alone, and the agent is another one; use agent=False")
    if every is not None and (type(every) is not int or every < 1):
        raise CallError(f"remote_every={every!r}: a whole number of steps, 1 or more, or None")
    if bytes_per_s is not None and (type(bytes_per_s) not in (int, float) or not bytes_per_s > 0):
        raise CallError(f"remote_bytes_per_s={bytes_per_s!r}: bytes a second, more than 0, or None")
    if keep == KEEP_ALL:
        text = ""
    else:
        rules = keep if keep is not None else home_keep
        text = "" if rules is None else text_of(as_rules(rules))
    limit = None if bytes_per_s is None else float(bytes_per_s)
    return Remote(url=str(place), store=open_store(place), every=every, keep=text, bytes_per_s=limit)
