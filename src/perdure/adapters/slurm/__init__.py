"""Slurm as an engine of `perdure run`: what it tells of an allocation, and how launchers are started in one."""

from perdure.adapters.slurm.allocation import Allocation, Step, seconds_left
from perdure.adapters.slurm.hostlist import hostnames

__all__ = ["Allocation", "Step", "hostnames", "seconds_left"]
