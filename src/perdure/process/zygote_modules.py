"""What a Python command will import, found out without running any of it: what a standby interpreter may import ahead.

The script is parsed, and so are the modules of the user's that it imports: those beside it and those of packages that
are installed from a working folder. Theirs may have side effects, so the rank imports them as ever; what they import
from the standard library and from site-packages is the answer. Only imports that happen whenever the module is imported
count: not those in functions, loops, conditions (``if TYPE_CHECKING``) and ``except`` clauses.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import shutil
import site
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["PythonCommand", "modules_of"]

_PLAIN = frozenset("bBdEIOPqsSuv")  # interpreter options without a value
_VALUED = frozenset("WX")
_BUDGET_S = 2.0  # the launcher waits for this
_PACKAGES = frozenset({"site-packages", "dist-packages"})  # also those of another environment, on PYTHONPATH
_MAX_FILES = 2000

# What a library imports only when it is used, and every training script uses.
_LATER = {
    "torch": ("torch._dynamo",),  # imported by the first optimizer that is made
    "perdure": ("perdure.adapters.torch.attach", "perdure.adapters.torch.checkpointer"),
}


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command that runs this interpreter: its options, the script or else the module, and the arguments of that."""

    python: str
    options: tuple[str, ...]
    script: str | None
    module: str | None
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, command: Sequence[str], *, cwd: str | None = None) -> PythonCommand | None:
        """Return what ``command``, started in ``cwd``, runs; None unless it is this environment's Python with a script
        or ``-m``.

        >>> PythonCommand.parse([sys.executable, "-u", "-m", "train", "--fast"]).module
        'train'
        >>> PythonCommand.parse(["sh", "-c", "python train.py"]) is None
        True
        """
        words = list(command)
        if not words or not _is_this_python(words[0]):
            return None
        place = 1
        while place < len(words) and words[place].startswith("-") and words[place] != "-":
            word = words[place]
            if word == "--check-hash-based-pycs":
                place += 2
                continue
            for index, letter in enumerate(word[1:], start=1):
                rest = word[index + 1 :]
                if letter == "m":
                    module = rest or next(iter(words[place + 1 :]), None)
                    options = [*words[1:place], *([word[:index]] if index > 1 else [])]
                    after = words[place + (1 if rest else 2) :]
                    return None if module is None else cls(words[0], tuple(options), None, module, tuple(after))
                if letter in _VALUED:
                    place += 0 if rest else 1
                    break
                if letter not in _PLAIN:
                    return None  # -c, -i, -h, -V, --version, ...
            place += 1
        if place >= len(words) or words[place] == "-":
            return None
        script = words[place]
        path = os.path.join(cwd or "", script)
        if not os.path.isfile(path) or path.endswith(".pyc") or zipfile.is_zipfile(path):
            return None
        return cls(words[0], tuple(words[1:place]), script, None, tuple(words[place + 1 :]))

    @property
    def safe_path(self) -> bool:
        """Whether an option says that the folder of the script is not searched for modules."""
        return any(
            word.startswith("-") and not word.startswith("--") and word[1:2] not in _VALUED and set("IP") & set(word)
            for word in self.options
        )

    def folder(self, cwd: str) -> str:
        """Return the folder that is searched first for modules, for a process that starts in ``cwd``."""
        if self.script is None:
            return cwd
        return os.path.dirname(os.path.realpath(os.path.join(cwd, self.script)))


def modules_of(command: Sequence[str], *, cwd: str | None = None) -> tuple[str, ...] | None:
    """Return the installed modules that ``command`` imports as it starts, in the order in which it does.

    None if it is not plain Python (a shell, another environment's interpreter, ``-c``): then there can be no standby
    for it. A name may turn out to be no module but something in one (``from torch import nn``); whoever imports it
    looks. A file that cannot be read or parsed imports nothing: the rank will say so.
    """
    parsed = PythonCommand.parse(command, cwd=cwd)
    if parsed is None:
        return None
    start = os.getcwd() if cwd is None else cwd
    search = _Search(None if parsed.safe_path else parsed.folder(start))
    if parsed.script is not None:
        search.read(os.path.join(start, parsed.script), package="")
    else:
        assert parsed.module is not None
        search.run_module(parsed.module)
    tops = {name.partition(".")[0] for name in search.found}
    later = [name for top, names in _LATER.items() if top in tops for name in names]
    return tuple(dict.fromkeys([*search.found, *later]))


class _Search:
    """The walk over the user's own files."""

    def __init__(self, folder: str | None) -> None:
        self.found: dict[str, None] = {}
        self._folder = folder
        self._seen: set[str] = set()
        self._until_s = time.monotonic() + _BUDGET_S
        self._installed = tuple({os.path.realpath(path) + os.sep for path in _installed_folders()})
        self._tops: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def run_module(self, name: str) -> None:
        """Read what ``python -m name`` runs, and the packages that it is in."""
        if self._is_installed(name):
            self._add(name.rpartition(".")[0])  # not the module itself: it is to run as __main__
        for candidate in (name, f"{name}.__main__"):
            self._follow(candidate)

    def read(self, path: str, *, package: str) -> None:
        """Note what the file at ``path``, a module in ``package``, imports, and read what of it is the user's own."""
        if path in self._seen or len(self._seen) >= _MAX_FILES or time.monotonic() > self._until_s:
            return  # what is not found is imported by the ranks, as ever
        self._seen.add(path)
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            return
        for name in _imports(tree, package):
            if self._is_installed(name):
                self._add(name)
            else:
                self._follow(name)

    def _add(self, name: str) -> None:
        if name:
            self.found[name] = None

    def _top(self, name: str) -> importlib.machinery.ModuleSpec | None:
        """Find a top-level module without importing it: beside the script, then where this interpreter finds it."""
        if name not in self._tops:
            beside = None if self._folder is None else importlib.machinery.PathFinder.find_spec(name, [self._folder])
            if beside is None or beside.origin is None:  # a mere folder yields to any real module further on
                try:
                    beside = importlib.util.find_spec(name) or beside
                except (ImportError, ValueError):
                    pass  # ``__main__``, or a finder that cannot tell
            self._tops[name] = beside
        return self._tops[name]

    def _is_installed(self, name: str) -> bool:
        top = name.partition(".")[0]
        spec = self._top(top)
        if spec is None or top in ("__main__", "__future__"):
            return False
        if top == "perdure" or spec.origin in ("built-in", "frozen"):
            return True
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        return all(self._is_of_an_installation(os.path.realpath(place)) for place in places) and bool(places)

    def _is_of_an_installation(self, place: str) -> bool:
        return place.startswith(self._installed) or not _PACKAGES.isdisjoint(place.split(os.sep))

    def _follow(self, name: str) -> None:
        """Read the user's module ``name``, if there is one, and the packages around it."""
        parts = name.split(".")
        spec = self._top(parts[0])
        if spec is None or self._is_installed(name):
            return
        self._read_spec(spec)
        for depth in range(1, len(parts)):
            if spec.submodule_search_locations is None:
                return
            spec = importlib.machinery.PathFinder.find_spec(
                ".".join(parts[: depth + 1]), list(spec.submodule_search_locations)
            )
            if spec is None:
                return  # something in the module, not a module
            self._read_spec(spec)

    def _read_spec(self, spec: importlib.machinery.ModuleSpec) -> None:
        if spec.origin is not None and spec.origin.endswith(".py"):
            self.read(spec.origin, package=spec.parent or "")


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """The full names that a module imports whenever it is imported itself."""
    waiting: list[ast.stmt] = list(reversed(tree.body))
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _absolute(module or "", level, package)
                if base is not None:
                    yield base
                    yield from (f"{base}.{alias.name}" for alias in names if alias.name != "*")
            case ast.Try(body=body, orelse=orelse, finalbody=finalbody):
                waiting += reversed([*body, *orelse, *finalbody])
            case ast.With(body=body) | ast.ClassDef(body=body):
                waiting += reversed(body)


def _absolute(module: str, level: int, package: str) -> str | None:
    """Return the full name of what ``from ..module import`` means in ``package``; None if it leaves the package."""
    if level == 0:
        return module
    parts = package.split(".") if package else []
    if level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def _installed_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return [
        *(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    ]


def _is_this_python(word: str) -> bool:
    """Whether ``word`` starts the interpreter, in the environment, that this process runs."""
    path = shutil.which(word)
    if path is None or not os.path.basename(path).startswith("python"):
        return False
    same_folder = os.path.realpath(os.path.dirname(os.path.abspath(path))) == os.path.realpath(
        os.path.dirname(sys.executable)
    )
    return same_folder and os.path.realpath(path) == os.path.realpath(sys.executable)
