"""The page of a job, from values: what is large is cut and says so, what is bad is named."""

from __future__ import annotations

import re

from perdure.http.jobs_page import body_of
from perdure.http.timeline import timeline
from perdure.supervisor import NodeFacts, Spec
from perdure.supervisor.asking import Seen
from perdure.supervisor.cordon import Cordon
from perdure.supervisor.goodput import Span
from perdure.supervisor.job import Job, State
from perdure.supervisor.messages import Moment, NodeView, RankView, View


def seen(*nodes: NodeView, live: bool = True, **job: object) -> Seen:
    state = Job(name="job", run="r", state=State.EXECUTE, attempt=0, **job)  # type: ignore[arg-type]
    view = View(
        job=state,
        spec=Spec(name="job", command=("x",)),
        nodes=nodes,
        facts=(),
        began_at=0.0,
        now_at=100.0,
        moments=(Moment(at=0.0, state=State.EXECUTE, attempt=0, step=0),),
    )
    return Seen(view, live=live)


def node(name: str, standing: str, *ranks: RankView, place: int | None = 0, heard_s: float = 0.1) -> NodeView:
    facts = NodeFacts(name=name, host="h", nproc=max(len(ranks), 1))
    return NodeView(facts=facts, place=place, standing=standing, ranks=ranks, heard_s=heard_s)


def test_each_standing_has_the_button_that_fits() -> None:
    cordon, refusal = Cordon().cordoned("bad", "core 3 <multiplies> wrongly", now=0.0, n_nodes=9)
    assert refusal is None
    html = body_of(
        seen(
            node("good", "runs"),
            node("spare", "spare", place=None),
            node("bad", "cordoned", place=None),
            node("out", "drained", place=None),
            node("gone", "lost", heard_s=7.0),
            cordon=cordon,
        )
    )
    assert set(re.findall(r'id="do-([a-z-]+)"', html)) == {
        "drain-good",
        "drain-spare",
        "uncordon-bad",
        "uncordon-out",
        "stop",
    }
    assert "core 3 &lt;multiplies&gt; wrongly" in html
    assert "silent for 7.0 s" in html


def test_a_job_without_a_controller_has_no_buttons() -> None:
    html = body_of(seen(node("a", "unknown"), live=False))
    assert "<button" not in html
    assert "execute, no controller" in html


def test_ranks_that_ended_are_marked_and_many_are_cut() -> None:
    html = body_of(seen(node("a", "runs", RankView(local_rank=0, step=3, ended="was killed by SIGKILL"))))
    assert 'class="cell phase-ended"' in html
    assert "rank 0 on a: step 3, was killed by SIGKILL" in html
    ranks = [RankView(local_rank=i, phase="forward") for i in range(5000)]
    html = body_of(seen(node("a", "runs", *ranks)))
    assert html.count('<li class="cell') == 4096
    assert "904 ranks more are not drawn" in html


def test_the_timeline_draws_the_last_attempts_to_one_scale() -> None:
    spans = [Span(at=10.0 * i, until=10.0 * (i + 1), attempt=i - 1, use="progress") for i in range(21)]
    svg = timeline(spans)
    assert svg.count("<svg") == 16
    assert "4 earlier attempts are not drawn" in svg
    rects = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', svg)]
    assert rects[0] == (0.0, 62.5)
    assert rects[-1] == (937.5, 62.5)
    assert "Nothing has happened yet" in timeline(())
