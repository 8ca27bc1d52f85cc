"""Ask a model, through the reading loop, with a deadline for each reply and for all of them.

A model is called in a thread of its own and left behind when its time is over, so that one that never returns, in
spite of its deadline, holds nobody up. Whatever goes wrong, the answer is that of rules, with a note.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from perdure.clock import SYSTEM, Clock
from perdure.errors import DeadlineExceeded, PerdureError
from perdure.memory.powers import ChatModel, Message
from perdure.memory.reading import DEFAULTS, SCHEMA, Limits, Reading
from perdure.memory.records import Answer
from perdure.memory.tools import Tools

__all__ = ["read_and_answer"]

_GRACE_S = 2.0
"""What a model that keeps its deadline by itself is given on top, to say so."""


def read_and_answer(
    question: str,
    tools: Tools,
    model: ChatModel,
    *,
    limits: Limits = DEFAULTS,
    hits: int = 10,
    clock: Clock = SYSTEM,
) -> Answer:
    """Return the model's answer, with citations of what it was shown, or that of rules with a note that says why.

    Takes at most ``limits.all_s`` seconds of the model's time and two more.
    """
    began = clock.monotonic()
    first = tools.shelf.search(question, limit=hits, history=False)
    reading = Reading(question, tools, by=model.name, limits=limits, first=first)
    messages: Sequence[Message] = reading.messages
    while True:
        left = limits.all_s - (clock.monotonic() - began)
        if left <= 0:
            return reading.give_up(f"{model.name} took longer than {limits.all_s:g} s in all")
        try:
            reply = _completed(model, messages, limits, min(left, limits.call_s))
        except PerdureError as error:
            return reading.give_up(f"{model.name} could not be asked: {error.message}")
        except Exception as error:  # whatever a model raises that was handed in
            return reading.give_up(f"{model.name} failed with {type(error).__name__}")
        step = reading.handle(reply)
        if isinstance(step, Answer):
            return step
        messages = step


def _completed(model: ChatModel, messages: Sequence[Message], limits: Limits, deadline_s: float) -> str:
    replies: queue.SimpleQueue[object] = queue.SimpleQueue()

    def complete() -> None:
        try:
            most = limits.reply_tokens
            replies.put(model.complete(messages, schema=SCHEMA, max_tokens=most, deadline_s=deadline_s))
        except Exception as error:  # raised again where the reply is awaited
            replies.put(error)

    threading.Thread(target=complete, name="memory-model", daemon=True).start()
    try:
        reply = replies.get(timeout=deadline_s + _GRACE_S)
    except queue.Empty:
        raise DeadlineExceeded(f"it gave no reply within {deadline_s:g} s", missing=[model.name]) from None
    if isinstance(reply, Exception):
        raise reply
    if not isinstance(reply, str):
        raise TypeError(f"a reply is a string, not {type(reply).__name__}")
    return reply
