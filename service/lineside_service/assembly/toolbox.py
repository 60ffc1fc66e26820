"""From the config's tools to functions and specs, with every broken target told at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lineside_service.assembly.specs import canonical, tool_spec
from lineside_service.config import Config, ConfigError, Mistake, ToolConfig
from lineside_service.config.mistakes import dotted
from lineside_service.core.schema import CompiledSchema, SchemaRefused, compile_schema
from lineside_service.core.schemaroot import why_no_object
from lineside_service.core.tool import ToolSpec
from lineside_service.tools.hints import FunctionShape, HintsRefused, read_function, summary
from lineside_service.tools.target import TargetRefused, load_target


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTool:
    """One configured tool with the function behind it, and its schemas: compiling them takes a while."""

    spec: ToolSpec
    function: Callable[..., Any]
    shape: FunctionShape
    input: CompiledSchema
    output: CompiledSchema | None


def make_importable(directory: Path) -> None:
    """Let targets be found beside the config file, before everything else on the Python path."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def load_tools(config: Config) -> list[LoadedTool]:
    """Import every tool's function and settle its schema; raises ConfigError with all that is broken.

    A module that was imported before is not imported again.
    """
    loaded: list[LoadedTool] = []
    mistakes: list[Mistake] = []
    compiled: dict[bytes, CompiledSchema] = {}
    for name, tool in config.tools.items():
        try:
            loaded.append(_load(name, tool, compiled))
        except _Broken as broken:
            mistakes.append(Mistake(str(config.file), dotted(("tools", name, broken.key)), broken.words))
    if mistakes:
        raise ConfigError(mistakes)
    return loaded


class _Broken(Exception):
    def __init__(self, key: str, words: object) -> None:
        super().__init__(str(words))
        self.key = key
        self.words = str(words)


def _load(name: str, tool: ToolConfig, compiled: dict[bytes, CompiledSchema]) -> LoadedTool:
    if (why := why_no_object(tool.input_schema or {})) is not None:
        raise _Broken("input_schema", f"no call could match, because arguments are always one object: {why}")
    try:
        function = load_target(tool.target)
        shape = read_function(function, tool.input_schema)
    except TargetRefused as error:
        raise _Broken("target", error) from None
    except HintsRefused as error:
        raise _Broken("target", f'"{tool.target}": {error}') from None
    if tool.phases and shape.context_name is None:
        raise _Broken("phases", "the function takes no ToolContext, so it cannot call begin_effect()")
    for key, given in (("input_schema", shape.schema), ("output_schema", tool.output_schema)):
        try:
            canonical(given or {})
        except (ValueError, TypeError, RecursionError) as error:
            raise _Broken(key, f"cannot be written as JSON: {str(error) or type(error).__name__}") from None
    spec = tool_spec(name, tool, shape.schema)
    return LoadedTool(
        spec=replace(spec, description=spec.description or summary(function)),
        function=function,
        shape=shape,
        input=_compiled("input_schema", spec.input_schema, compiled),
        output=_compiled("output_schema", spec.output_schema, compiled) if spec.output_schema else None,
    )


def _compiled(key: str, text: bytes, known: dict[bytes, CompiledSchema]) -> CompiledSchema:
    """The schema, compiled once however many tools have it."""
    try:
        if text not in known:
            known[text] = compile_schema(text)
    except SchemaRefused as error:
        raise _Broken(key, error) from None
    return known[text]
