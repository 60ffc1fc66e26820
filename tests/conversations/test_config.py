from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from conversations.catalogue import APIS
from conversations.config import demo_config, write_config


def _demo_tools() -> dict[str, Any]:
    tools: dict[str, Any] = demo_config(listen="127.0.0.1:50051", database="demo.sqlite")["tools"]
    return tools


def test_what_is_written_is_what_is_meant(tmp_path: Path) -> None:
    """The TOML file reads back as the configuration it was made from."""
    config = demo_config(listen="127.0.0.1:50051", database='a "quoted" place/demo.sqlite')
    path = tmp_path / "deep" / "lineside.toml"
    write_config(path, config)
    assert tomllib.loads(path.read_text()) == config


def test_unknown_outcomes_are_reconciled_for_four_apis_only() -> None:
    """Only final tools of the reconciled APIs name the reconcile tool, which is safe itself."""
    tools = _demo_tools()
    for api in APIS:
        for name, tool in tools.items():
            if name.startswith(f"{api.prefix}."):
                assert ("reconcile" in tool) == (api.reconcile and tool["effect"] == "final"), name
                assert tool["phases"] == api.phases
    assert tools["conversation.reconcile"]["effect"] == "safe"
