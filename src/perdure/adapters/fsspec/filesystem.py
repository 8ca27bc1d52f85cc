"""``perdure://``: the steps of a run as a read-only file system, for whatever opens its files through fsspec.

``perdure://<run>`` lists ``step-100``, ``step-200``, ...; a step, or ``newest``, lists its files (`step_files`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from perdure.adapters.fsspec.step_files import StepFile, files_of
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.restoring import read_catalog
from perdure.checkpoint.stalls import unless_stalled
from perdure.errors import BlobMissing, CallError
from perdure.events import Log, Notice
from perdure.store import Note, Run, StoreUrl, open_store
from perdure.store.branch import commit_of, standing

__all__ = ["PerdureFileSystem"]

_STEP = re.compile(r"(?:step-([0-9]{1,12})|newest)\Z")
_BLOCK_BYTES = 16 << 20  # read ahead: four tiles
Result = TypeVar("Result")


class PerdureFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The run at ``run`` (a folder or a URL), or whichever run a path begins with.

    >>> import tempfile, fsspec, safetensors.torch, torch, perdure
    >>> ckpt = perdure.Checkpointer(folder := tempfile.mkdtemp(), agent=False)
    >>> _ = ckpt.save(7, {"model": torch.nn.Linear(2, 2), "epoch": 3}).committed()
    >>> ckpt.close()
    >>> with fsspec.open(f"perdure://{folder}/step-7/model.safetensors") as file:
    ...     sorted(safetensors.torch.load(file.read()))
    ['bias', 'weight']

    Only committed steps of the branch that training is on are there. Every byte of a tensor is verified when it is
    read: a damaged one raises `BlobCorrupt`. What is not there raises ``FileNotFoundError``, as fsspec wants it.
    Nothing can be written: a step is made by a save alone.
    """

    protocol = "perdure"
    root_marker = ""
    cachable = False  # a run grows

    def __init__(self, run: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._root = None if run is None else str(StoreUrl.parse(run))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name, size and type of ``path``; of a step also what its commit says."""
        path = self._strip_protocol(path)
        run, step, name = self._split(path)
        if name is not None:
            return _file_info(path, self._file(run, step, name))
        if step is not None:
            commit = self._ask(lambda: commit_of(_open(run), step=_number(step)), path)
            return _folder(path, step=commit.step, slot=commit.slot, created=commit.created, metric=commit.metric)
        self._ask(lambda: _open(run), path)
        return _folder(path)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """The steps of a run, oldest first, or the files of a step."""
        path = self._strip_protocol(path)
        run, step, name = self._split(path)
        front = f"{path}/" if path else ""
        if name is not None:
            found = [self.info(path)]
        elif step is not None:
            found = [_file_info(f"{front}{name}", file) for name, file in self._files(run, step).items()]
        else:
            commits = {commit.step: commit for commit in reversed(self._ask(lambda: list(standing(_open(run))), path))}
            found = [
                _folder(f"{front}step-{each.step}", step=each.step, slot=each.slot, created=each.created)
                for each in sorted(commits.values(), key=lambda commit: commit.slot)
            ]
        return found if detail else [each["name"] for each in found]

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, cache_options: Any = None, **options: Any
    ) -> AbstractBufferedFile:
        if mode != "rb":
            _refuse(f"open {path} with {mode!r}", "save a step instead")
        run, step, name = self._split(path)
        if name is None or step is None:
            raise IsADirectoryError(f"{path} is a {'run' if step is None else 'step'}; ls() says what is in it")
        file = self._file(run, step, name)
        return _OpenFile(
            self, path, "rb", block_size or _BLOCK_BYTES, cache_options=cache_options, size=file.nbytes, file=file
        )

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> NoReturn:
        """Refused."""
        _refuse(f"make the folder {path}", "save a step instead, which makes its own")

    def makedirs(self, path: str, exist_ok: bool = False) -> NoReturn:
        """Refused."""
        self.mkdir(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> NoReturn:
        """Refused."""
        _refuse(f"delete {path}", "give steps up with `perdure checkpoint prune`")

    def rm_file(self, path: str) -> NoReturn:
        """Refused."""
        self.rm(path)

    def rmdir(self, path: str) -> NoReturn:
        """Refused."""
        self.rm(path)

    def copy(self, path1: Any, path2: Any, *more: Any, **options: Any) -> NoReturn:
        """Refused: ``get`` copies out of a run."""
        _refuse(
            f"copy {path1} to {path2}", "copy files out of it with get(), and steps with `perdure checkpoint export`"
        )

    def cp_file(self, path1: str, path2: str, **options: Any) -> NoReturn:
        """Refused: ``get_file`` copies out of a run."""
        self.copy(path1, path2)

    def mv(self, path1: Any, path2: Any, *more: Any, **options: Any) -> NoReturn:
        """Refused."""
        _refuse(f"move {path1} to {path2}", "copy files out of it with get(), and give steps up with a prune")

    def touch(self, path: str, truncate: bool = True, **options: Any) -> NoReturn:
        """Refused."""
        _refuse(f"touch {path}", "save a step instead")

    def _split(self, path: str) -> tuple[str, str | None, str | None]:
        """The run, the step as it is written, and the name of the file."""
        parts = path.rsplit("/", 2)
        for back in (1, 2):
            if len(parts) >= back and _STEP.match(parts[-back]):
                run = "/".join(parts[:-back])
                return self._run(run), parts[-back], parts[-1] if back == 2 else None
        return self._run(path), None, None

    def _run(self, path: str) -> str:
        if self._root is None:
            return path
        if path.strip("/"):
            raise FileNotFoundError(f"{path!r} is no step of {self._root}; there are step-<number> and newest")
        return self._root

    def _file(self, run: str, step: str | None, name: str) -> StepFile:
        files = self._files(run, step)
        if name not in files:
            raise FileNotFoundError(f"{step} of {run} has no {name!r}; it has {', '.join(files)}")
        return files[name]

    def _files(self, run: str, step: str | None) -> dict[str, StepFile]:
        def found() -> dict[str, StepFile]:
            opened = _open(run)
            catalog, packs = read_catalog(opened, commit_of(opened, step=_number(step)).slot)
            return files_of(catalog, lambda pack: [packs[pack]])

        return self._ask(found, f"{run}/{step}")

    def _ask(self, question: Callable[[], Result], what: str) -> Result:
        try:
            return unless_stalled(lambda moved: question(), stall_s=Deadlines().stall_s, what=what)
        except BlobMissing as error:
            raise FileNotFoundError(str(error)) from error


class _OpenFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file of a step; what it is was settled when it was opened."""

    def __init__(self, *arguments: Any, file: StepFile, **options: Any) -> None:
        self._file = file
        super().__init__(*arguments, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return unless_stalled(
            lambda moved: self._file.read(start, end, moved), stall_s=Deadlines().stall_s, what=f"bytes of {self.path}"
        )


def _refuse(what: str, instead: str) -> NoReturn:
    raise CallError(f"cannot {what}: perdure:// is for reading; {instead}")


def _open(run: str) -> Run:
    return Run.open(open_store(run), create=False, tell=_tell)


def _number(step: str | None) -> int | None:
    """The number of a step as it is written; None for the newest."""
    found = None if step is None else _STEP.match(step)
    return int(found[1]) if found is not None and found[1] is not None else None


def _folder(path: str, **facts: Any) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory", **facts}


def _file_info(path: str, file: StepFile) -> dict[str, Any]:
    return {"name": path, "size": file.nbytes, "type": "file"}


def _tell(note: Note) -> None:
    Log().emit(Notice(text=note.message))
