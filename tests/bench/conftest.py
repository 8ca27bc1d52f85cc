"""The files of bench/ find each other because they lie in one folder; here they do so too."""

import sys
from pathlib import Path

BENCH = str(Path(__file__).parents[2] / "bench")
if BENCH not in sys.path:
    sys.path.append(BENCH)
