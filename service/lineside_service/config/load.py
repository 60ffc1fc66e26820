"""The whole config, read from a TOML file, LINESIDE__* variables and flags; the later of them wins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from lineside_service.config.checks import access_mistakes, reconcile_mistakes
from lineside_service.config.mistakes import ConfigError, Mistake, place_and_words
from lineside_service.config.root import Config
from lineside_service.config.said import ENV_DELIMITER, ENV_PREFIX, Said
from lineside_service.config.tool import ToolConfig


def load_config(file: Path, flags: Mapping[str, Any] | None = None) -> Config:
    """Read and check the config; the only reader of LINESIDE__* variables.

    flags: what the command line says, by place (see FLAGS). Raises ConfigError with every mistake found.
    """
    file = file.absolute()
    said = Said(file=file, in_file=_read(file), in_env=_environment(file), flags=flags or {})
    raw = {"store": {}, **said.merged()}  # its default path, too, lies beside the config file
    context = {"directory": file.parent}
    try:
        config = Config.model_validate(raw, context=context)
    except ValidationError as error:
        tools = _sound_tools(raw.get("tools"), context)
        mistakes = [*_mistakes(error, said), *reconcile_mistakes(tools, raw.get("tools") or {}, said)]
        raise ConfigError(mistakes) from None
    mistakes = [*reconcile_mistakes(config.tools, config.tools, said), *access_mistakes(config, said)]
    if mistakes:
        raise ConfigError(mistakes)
    config._file = file  # noqa: SLF001 - its own class's, set once before anybody sees it
    return config


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([Mistake(str(file), "", "no such file")]) from None
    except OSError as error:
        raise ConfigError([Mistake(str(file), "", f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Mistake(str(file), "", f"is not UTF-8 text (byte {error.start})")]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Mistake(str(file), "", f"is not TOML: {error}")]) from None
    except RecursionError:
        raise ConfigError([Mistake(str(file), "", "nests too deep")]) from None


def _environment(file: Path) -> dict[str, Any]:
    """LINESIDE__SERVER__LISTEN=… as {"server": {"listen": …}}; lists and tables are given as JSON."""
    source = EnvSettingsSource(
        cast("type[BaseSettings]", Config), env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER
    )
    unknown = []
    for name in source.env_vars:
        part = name.removeprefix(ENV_PREFIX.lower()).split(ENV_DELIMITER)[0]
        if name.startswith(ENV_PREFIX.lower()) and part not in Config.model_fields:
            accepted = ", ".join(field.upper() for field in Config.model_fields)
            unknown.append(
                Mistake(
                    f"environment variable {name.upper()}",
                    "",
                    f"names no part of the config. Parts: {accepted}",
                )
            )
    if unknown:
        raise ConfigError(unknown)
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(
            [Mistake(f"environment over {file}", "", f"{error}; lists and tables are JSON")]
        ) from None


def _mistakes(error: ValidationError, said: Said) -> list[Mistake]:
    """All of pydantic's findings in our words. A tool of a kind to come has that one mistake alone."""
    details = error.errors(include_url=False)
    to_come = {d["loc"][:2] for d in details if d["loc"][2:] == ("kind",)}
    return [
        said.mistake(*place_and_words(Config, detail))
        for detail in details
        if detail["loc"][:2] not in to_come or detail["loc"][2:] == ("kind",)
    ]


def _sound_tools(raw: Any, context: dict[str, Any]) -> dict[str, ToolConfig]:
    """The tools that can be read, so that their mistakes are told in the same go."""
    sound: dict[str, ToolConfig] = {}
    for name, settings in raw.items() if isinstance(raw, dict) else ():
        try:
            sound[name] = ToolConfig.model_validate(settings, context=context)
        except ValidationError:
            continue  # told already
    return sound
