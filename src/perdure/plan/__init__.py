"""What must move, from whom, to whom: decided from layouts alone, before a byte is touched.

`reshard` makes a `Plan`, `audit` proves it, `rounds` fits it into a budget, `read_once` shares out what a group of
ranks reads alike. `perdure.fabric` carries a plan out.
"""

from perdure.plan.audit import audit
from perdure.plan.once import Shared, read_once
from perdure.plan.plan import Move, Plan
from perdure.plan.reshard import Distance, reshard
from perdure.plan.rounds import rounds

__all__ = ["Distance", "Move", "Plan", "Shared", "audit", "read_once", "reshard", "rounds"]
