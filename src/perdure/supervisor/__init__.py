"""The supervisor: starts the ranks of a job on its nodes, watches them, ends them for certain, and starts them again
while that helps, on other nodes where it has to.
"""

from perdure.supervisor.agent import AgentLink, NoAgent
from perdure.supervisor.config import Spec, Waits
from perdure.supervisor.folder import JobFolder
from perdure.supervisor.job import NodeFacts
from perdure.supervisor.launcher import Launcher, LauncherConfig

__all__ = ["AgentLink", "JobFolder", "Launcher", "LauncherConfig", "NoAgent", "NodeFacts", "Spec", "Waits"]
