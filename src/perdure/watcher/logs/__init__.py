"""What the logs of a failed job say: which kind of fault, who must act, and what to do.

`reading` takes files apart into lines, `signatures` is the table of what lines mean, `kernel` reads the kernel's own
lines, `collectives` the time-outs of collectives, `numbers` printed losses and step times, `templates` mines what is
new; `diagnose` puts them together.
"""

from __future__ import annotations
