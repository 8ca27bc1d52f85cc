"""The probe in ranks that a standby interpreter forks: torch was imported there, before a rank had its environment.

The standby imports this module last, and so pays once for what the probe imports; `begin` is what each rank calls. A
rank whose script has yet to import torch is left to the start-up file (`perdure.progress.shim`), as it is when it
starts cold.
"""

from __future__ import annotations

import sys

from perdure.adapters.torch import probe

if "torch" in sys.modules:
    from perdure.adapters.torch import probe_steps  # noqa: F401  (what the probe imports when it sets its hooks)

__all__ = ["begin"]


def begin() -> None:
    """Start the probe of this rank, if it is to be watched and has torch."""
    if "torch" in sys.modules:
        probe.start_from_environment()
