"""What was learnt from logs never seen before: errors that a job survives, counters, clauses, origins, norms.

All texts are invented; only the formats of messages are those of real programs.
"""
# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs.diagnose import diagnose
from perdure.watcher.logs.norms import printed
from perdure.watcher.logs.origins import from_the_network
from perdure.watcher.logs.reading import lines_of
from perdure.watcher.logs.signatures import match_of, without_advice, without_zeros

STEPS = "\n".join(f"step {n} loss {2 - n / 1000:.3f} lr 1e-4" for n in range(41, 47))

# fmt: off
CASES: list[tuple[str, str, str, str]] = [
    ("sw.desync", "user", "stop_user", "n3:7:9 [1] enqueue.cc:88 NCCL WARN Mismatched collective found, please check what rank 5 calls before it"),
    ("infra.net_config", "user", "stop_user", "n3:7:9 [1] socket.cc:90 NCCL WARN socketPollConnect: Connect to 10.9.8.7<40001> failed : Software caused connection abort"),
    ("infra.net_config", "user", "stop_user", "[rank1]: ncclInternalError: Internal check failed.\n[rank1]: Last error:\n[rank1]: Bootstrap : no socket interface found"),
    ("infra.net_config", "user", "stop_user", "[rank0]: ncclInternalError: Internal check failed.\n[rank0]: Last error:\n[rank0]: ncclSocketInit: connecting to address with family 0 is neither AF_INET(2) nor AF_INET6(10)"),
    ("sw.lib_bug", "infra", "restart", "[rank0]: ncclInternalError: Internal check failed."),
    ("sw.gpu_oom", "user", "stop_user", "E0000 client.cc:7] Execution of replica 0 failed: Resource exhausted: Failed to allocate request for 4.0GiB"),
    ("infra.rdzv", "infra", "restart", "Stopping the service as cluster registration failed. This can be due to tasks that were never scheduled."),
    ("infra.rdzv", "infra", "restart", "  rdzv_configs     : {'timeout': 1200}\n[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (head, 4444)."),
    ("transient.unknown", "transient", "restart", "UNAVAILABLE: Task /job:w/task:4 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly."),
    ("hw.nvlink", "node", "evict", "kernel: NVRM: Xid (PCI:0000:2a:00): 45, pid=8, name=python3, Ch 00000004 caused by previous Xid 149"),
    ("sw.user_code", "user", "stop_user", "UnicodeDecodeError: 'charmap' codec can't decode byte 0x9d in position 7: character maps to <undefined>"),
    ("sw.user_code", "data", "stop_user", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xf1 in position 9: invalid continuation byte"),
    ("train.nan", "data", "rollback", " iteration 9/ 90 | lm loss: 2.0 | grad norm: 0.7 | number of nan iterations:   0 |\n iteration 10/ 90 | loss scale: 1.0 | grad norm: nan | number of nan iterations:   0 |\n iteration 11/ 90 | loss scale: 1.0 | grad norm: nan | number of nan iterations:   0 |"),
    ("train.nan", "data", "rollback", "{'loss': 0.4, 'grad_norm': 0.5, 'epoch': 1.0}\n{'loss': 0.0, 'grad_norm': nan, 'epoch': 1.1}\n{'loss': 0.0, 'grad_norm': nan, 'epoch': 1.2}"),
    ("infra.storage", "transient", "restart", """\
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/urllib3/response.py", line 1, in read
    data = self._fp_read(amt)
  File "/usr/lib/python3.11/ssl.py", line 2, in read
    return self._sslobj.read(len)
TimeoutError: The read operation timed out"""),
    ("infra.storage", "transient", "restart", """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/env/lib/python3.11/site-packages/aiohttp/streams.py", line 1, in read
[rank2]: ConnectionResetError: [Errno 104] Connection reset by peer"""),
    ("sw.user_code", "user", "stop_user", """\
Traceback (most recent call last):
  File "/home/u/train.py", line 1, in <module>
    wait_for(flag)
TimeoutError: flag was never set"""),
    ("hw.host", "node", "evict", "[ 77.123456] mce: [Hardware Error]: Machine check events logged\n[ 77.123999] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400"),
    ("hw.host", "node", "warn", "[ 77.123456] mce: [Hardware Error]: Machine check events logged\n[ 77.123999] EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_Chan#0_DIMM#1"),
    ("sw.user_code", "user", "stop_user", STEPS + "\n[rank3]: KeyError: 'labels'\nstep 47 loss 1.9 lr 1e-4\n[rank0]: RuntimeError: [1] Connection closed by peer [10.0.0.3]:11"),
    ("hw.gpu_ecc", "node", "evict", "RuntimeError: CUDA error: uncorrectable ECC error encountered\n" + STEPS),
    ("hw.nvlink", "node", "evict", "n4:8:9 [2] transport/nvls.cc:301 NCCL WARN Cuda failure 401 'the operation cannot be performed in the present state'"),
    ("hw.nvlink", "node", "evict", "Last error:\nFailed to bind NVLink SHARP (NVLS) Multicast memory of size 4096 : CUDA error 1 'invalid argument'"),
    ("infra.driver", "node", "evict", "NVRM: this kernel module has the version 500.10.  Please\nNVRM: make sure that this kernel module and all NVIDIA driver"),
    ("sw.stale_process", "infra", "restart", "Tried to allocate 64.00 MiB (GPU 0; 15.90 GiB total capacity; 80.00 MiB already allocated; 9.00 MiB free; 90.00 MiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb."),
    ("infra.net_config", "user", "stop_user", "include/socket.h:301 WARN Socket creation failed : Address family not supported by protocol"),
    ("infra.shm", "user", "stop_user", "RuntimeError: DataLoader worker (pid 61) is killed by signal: Bus error."),
    ("infra.rdzv", "infra", "restart", "GRPC error information from remote target while calling /tensorflow.CoordinationService/RegisterTask:\n:{\"description\":\"Deadline Exceeded\"}"),
]

HEALTHY: list[str] = [
    "WARNING sample 11 is skipped\nTraceback (most recent call last):\n  File \"/app/read.py\", line 3, in get\nPIL.UnidentifiedImageError: cannot identify image file\n" + STEPS,
    "ValueError: no such sample, another one is taken\n" + STEPS + "\ntraining finished after 46 steps",
    "[W socket.cpp:1] [c10d] The client socket has failed to connect to [head]:4444 (errno: 111 - Connection refused).\nINFO: Rendezvous complete for workers. Result:\n" + STEPS,
    "ReadTimeout: HTTPSConnectionPool(host='hub.example', port=443): Read timed out.\nRetrying in 1s [Retry 1/5].\n" + STEPS,
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. Batch is halved.\n" + STEPS,
    "Epoch [1][50/900] lr: 1.0e-03, loss: 3.1, grad_norm: nan\nEpoch [1][100/900] lr: 1.0e-03, loss: 2.2, grad_norm: 4.0",
    "n1:3:4 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v9 symbol.\n" + STEPS,
    "    Clocks Event Reasons\n        HW Slowdown                       : Not Active\n            HW Thermal Slowdown           : Not Active",
    "W bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.0GiB. The caller indicates that this is not a failure, but may mean that more memory would help.\n" + STEPS,
    "[rank0]:[W1] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group.",
    "ReadTimeoutError: HTTPSConnectionPool(host='hub.example', port=443): Read timed out.\nRetrying in 1s [Retry 1/5].\n{'eval_loss': 2.1, 'epoch': 0.5}",
    "wandb: Network error resolved after 0:00:09.1, resuming normal operation.",
    "No PCIe AER errors.\nNo ARM processor errors.\nMCE records summary:\n\t2 Corrected error, no action required. errors",
    "WARNING:root:NaN or Inf found in input tensor.\n" + STEPS,
    "checked 64 links: 0 errors, 0 lost\nmemory errors: 0, retries = 0\n" + STEPS,
]
# fmt: on


@pytest.mark.parametrize(("label", "owner", "action", "text"), CASES, ids=range(len(CASES)))
def test_a_log_gives_its_label_owner_and_action(label: str, owner: str, action: str, text: str) -> None:
    said = diagnose(lines_of(text))
    assert (said.label, said.owner, said.action) == (label, owner, action), said.why


@pytest.mark.parametrize("text", HEALTHY, ids=range(len(HEALTHY)))
def test_a_job_that_goes_on_has_not_failed(text: str) -> None:
    said = diagnose(lines_of(text))
    assert (said.label, said.owner, said.action) == (None, Owner.NOBODY, None), said


def test_steps_of_other_ranks_do_not_take_an_error_back() -> None:
    peers = "\n".join(f"[rank{n % 3}]: step {n} loss 2.0 lr 1e-4" for n in range(40, 60))
    said = diagnose(lines_of("[rank7]: KeyError: 'labels'\n" + peers))
    assert (said.label, said.action) == (Label.USER_CODE, Action.STOP_USER)


def test_steps_in_another_file_do_not_take_an_error_back() -> None:
    first = lines_of("KeyError: 'labels'", file="rank7.log")
    said = diagnose(first + lines_of(STEPS, file="rank0.log", order=1))
    assert said.label is Label.USER_CODE


def test_advice_goes_from_the_clause_that_begins_it() -> None:
    assert without_advice("the store is full, please check your quota") == "the store is full"
    assert without_advice("Please check your quota.") == ""


def test_counters_that_say_zero_go_and_the_rest_of_their_line_stays() -> None:
    assert without_zeros("lost: 0, link down") == ", link down"
    assert "replica 0 failed" in without_zeros("Execution of replica 0 failed")
    assert match_of("rank 0 failed: CUDA out of memory") is not None


def test_a_value_in_a_row_of_values_is_told_from_a_sentence() -> None:
    assert printed("{'loss': 1.0, 'grad_norm': nan}")
    assert not printed("Loss is nan, stopping training")


def test_only_classes_that_fit_are_the_networks() -> None:
    head = 'Traceback (most recent call last):\n  File "/x/site-packages/requests/models.py", line 1, in json\n'
    assert from_the_network(lines_of(head + "ConnectionError: gone")) == {2}
    assert from_the_network(lines_of(head + "KeyError: 'x'")) == set()
