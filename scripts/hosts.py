"""Check that no tracked file names a package registry's host, so that mirrors and proxies work everywhere.

Exits 1 with `file:line: host` of each find.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOSTS = re.compile(
    rb"pypi\.org|pythonhosted\.org|registry\.npmjs\.|registry\.yarnpkg\.|crates\.io|(?:proxy|sum)\.golang\.org"
    rb"|repo1?\.maven\.|maven\.apache\.org/maven2|(?:deb|security)\.debian\.org|nuget\.org"
)


def tracked() -> list[Path]:
    """List the files that git tracks, as far as they stand in the work tree."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    paths = (ROOT / name.decode() for name in listing.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def finds(path: Path) -> list[str]:
    """Give `file:line: host` for each registry host in a file; binary files are searched too."""
    lines = enumerate(path.read_bytes().splitlines(), start=1)
    hits = ((number, HOSTS.search(line)) for number, line in lines)
    return [f"{path.relative_to(ROOT)}:{number}: {hit[0].decode()}" for number, hit in hits if hit]


if __name__ == "__main__":
    found = [find for path in tracked() for find in finds(path)]
    if found:
        sys.exit("\n".join(["package registry hosts in tracked files:", *found]))
