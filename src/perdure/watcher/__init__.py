"""Watch over the processes of a training job: signals in, verdicts out (TRANSOM's TEE).

`samples` are what is seen of ranks and nodes, detectors are pure functions that make `Evidence` of them, and the
analyser makes a `Verdict` of that: what is wrong, which node or nobody, how sure, what to do, and why.
"""

from __future__ import annotations
