"""Places to put a database where something is wrong with the disk: real ones, not pretended."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_NOBODY = 65534


@contextlib.contextmanager
def unprivileged_directory() -> Iterator[Path]:
    """A directory of one's own as somebody whom file modes bind: root steps down for as long as it lasts."""
    directory = Path(tempfile.mkdtemp(prefix="lineside-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(directory, _NOBODY, -1)
        os.seteuid(_NOBODY)
    try:
        yield directory
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o700)
        shutil.rmtree(directory)


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of that size; skips the test where mounting is not allowed."""
    directory = Path(tempfile.mkdtemp(prefix="lineside-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        directory.rmdir()
        pytest.skip("mounting a small file system takes root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


@contextlib.contextmanager
def failing_writes(above_bytes: int) -> Iterator[None]:
    """Every write of this process beyond that file offset fails, which SQLite sees as an I/O error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (above_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
