"""The package as an importer and a type checker meet it."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

import lineside


def loaded_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter has after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_contract_loads_neither_client_nor_grpc() -> None:
    """A service that needs only the messages pays for no client."""
    modules = loaded_by("from lineside.v1 import dispatch_pb2, calls_pb2, errors_pb2, tools_pb2")
    own = {name for name in modules if name.startswith("lineside.") and not name.startswith("lineside.v1")}
    assert own == set()
    assert not {name for name in modules if name == "grpc" or name.startswith(("grpc.", "opentelemetry"))}


def test_package_loads_nothing_until_a_name_is_used() -> None:
    """`import lineside` is free; the words and step_key come without gRPC."""
    assert not {
        name for name in loaded_by("import lineside") if name.startswith(("grpc", "lineside.", "google"))
    }
    assert "grpc" not in loaded_by("from lineside import step_key, Outcome")
    modules = loaded_by("from lineside import Client, AsyncClient")
    assert not {
        name for name in modules if name.startswith(("typer", "rich", "lineside_service", "opentelemetry"))
    }


def test_every_public_name_is_there() -> None:
    """All of __all__ resolves, and nothing else does."""
    for name in lineside.__all__:
        assert getattr(lineside, name) is not None
    assert set(lineside.__all__) <= set(dir(lineside))
    with pytest.raises(AttributeError, match="Nothing"):
        _ = lineside.Nothing


def test_package_is_typed_and_ships_its_service_config() -> None:
    """py.typed and service_config.json lie beside the code."""
    files = {file.name for file in resources.files("lineside").iterdir()}
    assert {"py.typed", "service_config.json"} <= files
