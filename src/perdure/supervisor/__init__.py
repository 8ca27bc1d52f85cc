"""The supervisor: starts the ranks of a job, watches them, ends them for certain, and starts them again while that
helps.
"""

from perdure.supervisor.agent import AgentLink, NoAgent
from perdure.supervisor.config import RunConfig
from perdure.supervisor.launcher import Launcher

__all__ = ["AgentLink", "Launcher", "NoAgent", "RunConfig"]
