"""The board in deploy/grafana asks for figures that `--metrics` writes, all of them that are worth a picture."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from places import ROOT

from dorff.cli import metrics
from dorff.spec.reader import load_job

BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "dorff.json").read_text())


def test_it_asks_for_figures_that_are_written(tmp_path: Path) -> None:
    """By their names and labels, as a file of all figures has them."""
    file, job = tmp_path / "sea.prom", tmp_path / "job.yaml"
    with metrics.recorded(file, "fit", job, partial(load_job, job)) as figures:
        figures |= dict.fromkeys(metrics._KEPT, 1.0)
    written = {line.split("{")[0]: line for line in file.read_text().splitlines() if not line.startswith("#")}
    asked = set()
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            for name, label in re.findall(r"(dorff_\w+)\{(\w+)=~\"\$job\"\}", target["expr"]):
                assert f'{label}="' in written[name], (panel["title"], name)
                asked.add(name)
            assert asked, target["expr"]
    left = {name.removeprefix("dorff_") for name in set(written) - asked}
    assert left == {"last_run_timestamp_seconds", "rows_unlabelled", "trials", "reads"}


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["description"].endswith(".")
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
