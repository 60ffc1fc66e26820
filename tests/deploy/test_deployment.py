"""service/deploy/ by itself: what its files name is there, is pinned, and is documented."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.deploy.monitoring import DEPLOY, dashboard, dashboard_expressions
from tests.support.pages import ROOT, rows_of, ticked
from tests.support.process import COMMAND

COMPOSE = (DEPLOY / "compose.yaml").read_text()
ALERTS = (DEPLOY / "prometheus" / "alerts.yml").read_text()
RECORDING = (DEPLOY / "prometheus" / "recording.yml").read_text()
_METRIC = re.compile(r"\b(?:dispatch|rpc_server|process)_[a-z0-9_]+")


def test_every_alert_is_in_the_runbook() -> None:
    """Names, severities and anchors of the page are those of the rules, and the anchors exist."""
    ruled = re.findall(
        r"alert: (\w+)\n.*?severity: (\w+)\}.*?runbook: docs/operations\.md#(\S+)\n", ALERTS, re.DOTALL
    )
    said = [
        (ticked(row["alert"])[0], row["severity"], row["do"].rpartition("#")[2].rstrip(")"))
        for row in rows_of("operations.md", "alert", "severity")
    ]
    assert sorted(ruled) == sorted(said)
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {anchor for _, _, anchor in ruled} <= anchors


def test_dashboard_and_rules_use_documented_metrics_and_leave_none_out() -> None:
    """What is asked for is on the page; every metric of ours there is asked for somewhere."""
    documented = {ticked(row["metric"])[0] for row in rows_of("telemetry.md", "metric")}
    text = "\n".join([*dashboard_expressions(), _expressions_alone(RECORDING), _expressions_alone(ALERTS)])
    used = {re.sub(r"_(?:bucket|count|sum)$", "", name) for name in _METRIC.findall(text)}
    assert used <= documented
    assert {name for name in documented if name.startswith("dispatch_")} <= used


def test_panels_have_places_of_their_own() -> None:
    """No id twice, none over another or beyond the edge; each names the data source that is chosen."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    sources = {json.dumps(panel["datasource"]) for panel in panels if panel["type"] != "row"}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}


def test_images_are_pinned_and_mounts_exist() -> None:
    """No image floats; what a container is given is in the repository; ports stay on this machine."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    images = re.findall(r"image: (\S+)", COMPOSE) + re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert images
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+", image)] == []
    for mounted in re.findall(r"- (\.\S*?):/", COMPOSE):
        assert (DEPLOY / mounted).exists(), mounted
    ports = re.findall(r"- (\S+):\d+:\d+", COMPOSE)
    assert set(ports) == {"127.0.0.1"}


def test_the_services_config_is_sound(tmp_path: Path) -> None:
    """`check` takes it, with the tools that are mounted beside it."""
    shutil.copy(DEPLOY / "lineside.toml", tmp_path)
    shutil.copy(ROOT / "examples" / "quickstart" / "tools.py", tmp_path)
    ran = subprocess.run(
        [COMMAND, "check", "--config", str(tmp_path / "lineside.toml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _expressions_alone(rules: str) -> str:
    """A rule file without its comments and annotations."""
    return re.sub(r"#.*|(?:summary|runbook):.*", "", rules)
