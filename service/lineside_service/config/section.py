"""What all parts of the config share: frozen, no unknown keys, files named beside the config file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationInfo


class Section(BaseModel):
    """One table of the config file: immutable once read; a key it does not know is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


def directory_of(info: ValidationInfo) -> Path:
    """The config file's directory, which relative paths in it start from."""
    directory = (info.context or {}).get("directory")
    return directory if isinstance(directory, Path) else Path()


def _beside_config(value: Any, info: ValidationInfo) -> Any:
    return directory_of(info) / value if isinstance(value, str | Path) and str(value) else value


def _must_exist(path: Path) -> Path:
    if not path.is_file():
        raise ValueError("no such file; paths are relative to the config file's directory")
    return path


FilePath = Annotated[Path, BeforeValidator(_beside_config)]
"""A path, absolute or relative to the config file's directory."""

ExistingFile = Annotated[FilePath, AfterValidator(_must_exist)]
"""The same, of a file that is there."""
