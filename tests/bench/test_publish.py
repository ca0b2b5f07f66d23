"""The README's figures come from a run's JSON, and from nowhere else."""

from typing import Any
from xml.etree import ElementTree

from penstock.bench.publish import insert, picture, table


def row(arm: str, state: str, files_per_s: float, ratio: float) -> dict[str, Any]:
    return {
        "arm": arm, "dataset": "small", "state": state, "readers": 8,
        "files_per_s": files_per_s, "mb_per_s": 1.0, "native_ratio": ratio,
    }  # fmt: skip


REPORT: dict[str, Any] = {
    "machine": {"cores": 2, "kernel": "6.18.44-x"},
    "settings": {"files": 10_000, "large": 8, "medium": "tmpfs"},
    "rows": [
        row("native", "warm", 50_000, 1.0), row("penstock", "warm", 49_000, 0.98),
        row("penstock", "cold", 2_000, 0.04), row("rclone", "warm", 1_000, 0.02),
    ],
}  # fmt: skip


def test_the_table_has_a_line_for_each_system_that_was_measured() -> None:
    text = table(REPORT)
    assert "| **Penstock** | 2,000 | – | 49,000 | 0.98 | – |  |" in text
    assert "| rclone mount | – | – | 1,000 | 0.020 | – |  |" in text
    assert "JuiceFS" not in text


def test_the_picture_is_drawn_to_scale() -> None:
    root = ElementTree.fromstring(picture(REPORT))
    widths = [float(bar.get("width", "0").rstrip("%")) for bar in root.iter() if bar.get("rx")]
    assert widths == [560, 549, 11]


def test_what_stands_between_the_marks_is_replaced() -> None:
    page = "a\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nb"
    assert insert(page, "new") == "a\n<!-- bench:begin -->\nnew\n<!-- bench:end -->\nb"
