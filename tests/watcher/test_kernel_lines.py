"""Xids: what each means, which of a burst is the cause, and which GPU of a broken link is the source."""

from __future__ import annotations

import pytest

from perdure.watcher.labels import Action, Label
from perdure.watcher.logs.diagnose import diagnose
from perdure.watcher.logs.kernel import XIDS, roots, xid_of
from perdure.watcher.logs.reading import lines_of


def xid(code: int, rest: str = "", *, at: float = 1.0, device: str = "0000:3b:00", node: str = "n1") -> str:
    return f"Jan  1 00:00:{at:09.6f} {node} kernel: NVRM: Xid (PCI:{device}): {code}, pid=1, {rest}"


def causes(*rows: str) -> list[int]:
    found = [xid_of(line) for line in lines_of(rows)]
    return [each.code for each in roots(each for each in found if each is not None)]


@pytest.mark.parametrize(
    ("code", "label", "action"),
    [
        (48, Label.GPU_ECC, Action.EVICT),
        (64, Label.GPU_ECC, Action.EVICT),
        (95, Label.GPU_ECC, Action.EVICT),
        (171, Label.GPU_ECC, Action.EVICT),
        (172, Label.GPU_ECC, Action.EVICT),
        (94, Label.GPU_ECC_CONTAINED, Action.RESTART),
        (63, Label.GPU_ECC_CONTAINED, Action.WARN),
        (79, Label.GPU_OFF_BUS, Action.EVICT),
        (119, Label.GPU_GSP, Action.EVICT),
        (120, Label.GPU_GSP, Action.EVICT),
        (74, Label.NVLINK, Action.EVICT),
        (167, Label.PCIE, Action.EVICT),
        *[(code, Label.GPU_OTHER, Action.EVICT) for code in (46, 62, 109, 136, 140, 143, 158)],
        *[(code, Label.USER_CODE, Action.RESTART) for code in (13, 31)],
        (987, Label.GPU_OTHER, Action.EVICT),
    ],
)
def test_a_single_xid_gives_its_label_and_action(code: int, label: Label, action: Action) -> None:
    said = diagnose(lines_of(xid(code)))
    assert (said.label, said.action) == (label, action)


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlinks_of_the_fifth_generation_say_whether_it_is_fatal(code: int) -> None:
    assert diagnose(lines_of(xid(code, "RLW_X  Fatal  XC0 i0 Link 03"))).label is Label.NVLINK
    mended = diagnose(lines_of(xid(code, "RLW_X  Nonfatal  XC0 i0 Link 03")))
    assert (mended.label, mended.action) == (Label.NVLINK_NONFATAL, Action.WARN)


def test_the_first_of_a_burst_is_the_cause() -> None:
    assert causes(xid(48, at=1.0), xid(45, at=1.1), xid(95, at=4.0)) == [48]
    assert causes(xid(48, at=1.0), xid(79, at=30.0)) == [48, 79]
    assert causes(xid(48, at=1.0), xid(79, at=2.0, node="n2")) == [48, 79]


def test_after_effects_and_notes_are_causes_only_where_nothing_else_is() -> None:
    assert causes(xid(45), xid(43), xid(119)) == [119]
    assert causes(xid(63), xid(94)) == [94]
    assert causes(xid(154), xid(63)) == [63]
    assert causes(xid(43)) == [43]
    assert diagnose(lines_of(xid(43))).label is Label.UNKNOWN


def test_of_many_gpus_the_one_whose_link_went_down_is_the_source() -> None:
    victims = [xid(145, "RLW_SRC_TRACK Fatal Link 03", at=n / 50, node=f"v{n}") for n in range(40)]
    source = xid(149, "NETIR_LINK_DOWN Fatal Link 03", at=0.5, node="bad")
    rows = [*victims[:20], source, *victims[20:]]
    assert causes(*rows) == [149]
    assert diagnose(lines_of(rows)).nodes == ("bad",)


@pytest.mark.parametrize("code", sorted(XIDS))
def test_every_known_number_says_what_it_is(code: int) -> None:
    assert XIDS[code].means


@pytest.mark.parametrize(
    "row",
    ["exid 79", "the Xid table lists 79 entries of NVIDIA", "taxid: 9606", "nothing"],
)
def test_a_line_that_only_talks_of_numbers_is_no_xid(row: str) -> None:
    assert xid_of(lines_of(row)[0]) is None


@pytest.mark.parametrize(
    "row",
    [
        "[  100.5] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "[Mon Jan  1 00:00:01 2026] NVRM: Xid (PCI:0000:01:00.0): 79, pid='<unknown>'",
        "kern  :warn  : 2026-01-01T00:00:01,287197+00:00 NVRM: Xid (0000:01:00): 79, x",
        "2026-01-01T00:00:01.5+00:00 n1 kernel: [100.5] NVRM: Xid (PCI:0000:01:00): 79, x",
    ],
)
def test_all_spellings_of_a_kernel_line_are_read(row: str) -> None:
    found = xid_of(lines_of(row)[0])
    assert found is not None
    assert (found.code, found.device[:7]) == (79, "0000:01")
