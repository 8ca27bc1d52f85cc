"""A fault suite for watchers of training jobs: real ranks of torch.distributed, real faults, answers that are judged.

    from perdure.testing.faults.cases import campaign
    from perdure.testing.faults.report import run, write
    outcomes = run(campaign(), MyWatcher, Path("/tmp/suite"), base=os.environ, kept=Path("journal.jsonl"))
    print(write(outcomes, title="My watcher", about=[]))

`perdure.testing.faults.watching.Watcher` is what has to be written for another watcher: three methods.
docs/watcher-suite.md lists the faults and what is expected.
"""
