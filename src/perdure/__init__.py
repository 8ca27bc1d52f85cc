"""Perdure keeps the state of large models alive: it saves it, verifies it, brings it back and moves it.

`import perdure` loads nothing but the standard library. Each public name below is looked up when it is first used, in
the module that `_HOME` names; a name that needs a library you have not installed says which extra to install.

>>> import perdure
>>> "Checkpointer" in dir(perdure)
True
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # typing's own constant would load typing, most of the time that this import takes
if TYPE_CHECKING:
    from perdure import codec, errors, fabric, layout, memory, plan, testing
    from perdure.adapters.torch import dcp
    from perdure.adapters.torch.attach import attach
    from perdure.adapters.torch.checkpointer import Checkpointer
    from perdure.adapters.torch.flat_slices import FlatSlice
    from perdure.adapters.torch.hf_trainer import TrainerCallback
    from perdure.adapters.torch.load import load
    from perdure.adapters.torch.load_into import load_into
    from perdure.adapters.torch.rng import Rng
    from perdure.adapters.torch.views import Fused, Stage, View
    from perdure.plan import reshard
    from perdure.state.scopes import RankLocal
    from perdure.upkeep import keep

__version__ = "0.1.0.dev0"

__all__ = [
    "Checkpointer",
    "FlatSlice",
    "Fused",
    "RankLocal",
    "Rng",
    "Stage",
    "TrainerCallback",
    "View",
    "__version__",
    "attach",
    "codec",
    "dcp",
    "errors",
    "fabric",
    "keep",
    "layout",
    "load",
    "load_into",
    "memory",
    "plan",
    "reshard",
    "testing",
]

# A public name and the module that defines it; a name that is a module itself has no entry.
_HOME = {
    "Checkpointer": "perdure.adapters.torch.checkpointer",
    "FlatSlice": "perdure.adapters.torch.flat_slices",
    "Fused": "perdure.adapters.torch.views",
    "RankLocal": "perdure.state.scopes",
    "Rng": "perdure.adapters.torch.rng",
    "Stage": "perdure.adapters.torch.views",
    "TrainerCallback": "perdure.adapters.torch.hf_trainer",
    "View": "perdure.adapters.torch.views",
    "attach": "perdure.adapters.torch.attach",
    "load": "perdure.adapters.torch.load",
    "load_into": "perdure.adapters.torch.load_into",
    "reshard": "perdure.plan",
}

# A public name that is a module further down.
_MODULES = {"dcp": "perdure.adapters.torch.dcp", "keep": "perdure.upkeep.keep"}

# A library that a module needs and the extra that installs it, where the two have other names.
_EXTRA = {"mcp": "memory", "mpi4py": "mpi", "numba": "exchange", "obstore": "objectstore", "pyscf": "exchange"}


def __getattr__(name: str) -> object:
    """Import what ``name`` stands for, keep it, and return it."""
    if name not in __all__:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    try:
        if name in _HOME:
            value: object = getattr(importlib.import_module(_HOME[name]), name)
        else:
            value = importlib.import_module(_MODULES.get(name, f"perdure.{name}"))
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "perdure"):
            raise
        extra = _EXTRA.get(library, library)
        advice = f"perdure.{name} needs {library}: pip install 'perdure[{extra}]'"
        raise ModuleNotFoundError(advice, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
