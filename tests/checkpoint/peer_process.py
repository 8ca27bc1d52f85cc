"""An agent's memory in a process of its own, for tests that stop it: serves one save to ranks of other nodes.

argv is how many columns of 300 float32 its tensor has. It prints its port, and serves until it is killed.
"""

from __future__ import annotations

import sys
import time

from test_wards import Partner, deposit, sealed


def main() -> None:
    partner = Partner()
    index, view = sealed(1, shape=(300, int(sys.argv[1])))
    partner.give(deposit(3, [(index, view)]), [view])
    print(partner.address[1], flush=True)
    time.sleep(300)


if __name__ == "__main__":
    main()
