"""A process that has imported torch once and forks the ranks of many attempts: for tests, where each second counts.

It takes one JSON line at a time on its stdin and answers with one on its stdout:

    {"start": script, "argv": [...], "envs": [{...}, ...], "outs": [path, ...]}     -> {"pids": [...]}
    {"poll": [pid, ...]}                                                             -> {"ended": {pid: status, ...}}

Ranks of one attempt share a process group, as the jobs of a terminal do, and die with this process.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import sys

import perdure

importlib.import_module("numpy.random")
importlib.import_module("torch._dynamo")  # which the first step of an optimizer loads
importlib.import_module("torch.distributed.fsdp")
assert perdure.attach  # and with it all that it needs
gc.collect()
gc.freeze()  # so that no collection in a rank touches, and so copies, the pages of all this


def fork(group: int, env: dict[str, str], out: str) -> int:
    """Return the pid of a new rank; 0 in the rank itself."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        try:
            os.setpgid(pid, group or pid)
        except OSError:
            pass  # it has done so itself and gone already
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(127)
    os.setpgid(0, group)
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fd, 1), (fd, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(env)
    return 0


def serve() -> tuple[str, list[str]]:
    """Answer until stdin ends; return what to run in a rank."""
    for line in sys.stdin:
        ask = json.loads(line)
        if "start" in ask:
            pids: list[int] = []
            for env, out in zip(ask["envs"], ask["outs"], strict=True):
                pid = fork(pids[0] if pids else 0, env, out)
                if not pid:
                    return ask["start"], ask["argv"]
                pids.append(pid)
            answer: object = {"pids": pids}
        else:
            ended = {}
            for pid in ask["poll"]:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            answer = {"ended": ended}
        print(json.dumps(answer), flush=True)
    sys.exit(0)


script, argv = serve()
sys.argv = [script, *argv]
with open(script, "rb") as file:
    code = compile(file.read(), script, "exec")
exec(code, {"__name__": "__main__", "__file__": script})
