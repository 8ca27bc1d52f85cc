"""Links between ranks, and a plan carried out over them.

`Fabric` is what is needed of links; `SoloFabric` and `ThreadsFabric` are twins of it; `carry_out` makes the moves of a
plan; `agree` lets every rank know how all the others fared.
"""

from perdure.fabric.agree import agree, all_gather_json
from perdure.fabric.api import Bytes, Fabric
from perdure.fabric.carry import Arrays, carry_out
from perdure.fabric.solo import SoloFabric
from perdure.fabric.threads import ThreadsFabric

__all__ = ["Arrays", "Bytes", "Fabric", "SoloFabric", "ThreadsFabric", "agree", "all_gather_json", "carry_out"]
