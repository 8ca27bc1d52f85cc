"""A process that lives a life upon a folder and says so: ``saver.py FOLDER SIZES IO SEED ACTS SAVES``.

SIZES is ``small`` or ``large``, IO how large blobs are written (``-``: as by default). ACTS 0 plays the whole life of
`lives.play`; more play so many at random, going on from what is there. SAVES is how many saves there were before.
Standard input is waited for; each line out is flushed.
"""

from __future__ import annotations

import random
import sys

from lives import LARGE, SMALL, Life, play, play_at_random

from perdure.store import Disk, Run
from perdure.store.io_choice import Io


def main() -> None:
    folder, sizes, io, seed, acts, saves = sys.argv[1:]
    life = Life(say=lambda line: print(line, flush=True), sizes=LARGE if sizes == "large" else SMALL)
    life.contents.update({number: {} for number in range(int(saves))})  # their numbers are taken

    def start() -> Run:
        return Run.open(Disk(folder, io=None if io == "-" else Io.parse(io)), create=True)

    print("ready", flush=True)
    sys.stdin.read()
    if int(acts):
        play_at_random(start, life, random.Random(int(seed)), acts=int(acts))
    else:
        play(start, life)


if __name__ == "__main__":
    main()
