"""Start the probe in code that knows nothing of perdure: this file, laid down as ``sitecustomize.py``.

`perdure.progress.probing` copies it into a folder at the front of PYTHONPATH. Python runs it at its start, before
anything of the program. It runs the sitecustomize that it stands before, if there is one, and then waits for an import
of torch: in a rank that is to be watched, a thread begins to beat as that import begins (it may take long) and the
hooks are set when it is over. Where torch is never imported it costs a comparison of names at each import of a module
that is not loaded yet. Nothing that goes wrong here reaches the program.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["chain", "wait_for_torch"]


class _Wait:
    """Finds nothing by itself; sees that torch is looked for, and has its loader tell the probe when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        try:
            # By name: as sitecustomize this file stands in no storey, and as a module of progress it is never run.
            if not importlib.import_module("perdure.process.environ").ProbeTold.read().wanted:
                return None
            probe = importlib.import_module("perdure.adapters.torch.probe")
            if not probe.start_from_environment():
                return None
        except Exception:  # a program goes on without being watched
            return None
        load = spec.loader.exec_module

        def load_and_tell(module: ModuleType) -> None:
            load(module)
            probe.watch_torch()

        spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec


def wait_for_torch() -> None:
    """Start the probe when torch is imported."""
    sys.meta_path.insert(0, _Wait())


def chain() -> None:
    """Run the next sitecustomize on the path, as if this one were not there; what it raises is its own."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [place for place in sys.path if os.path.abspath(place or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = ModuleType("sitecustomize")
    module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    wait_for_torch()
    chain()
