"""Build the Java client with Maven, below client/java/target, only when its sources or the protos changed.

    build    compile it and its tests, and lay the jars they need beside them
    test     compile it and run its tests against the service of this checkout

Maven fetches what its local repository lacks, and nothing when it has all. Standard library only.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JAVA = ROOT / "client" / "java"
STAMP = JAVA / "target" / "built.sha256"


def pin() -> str:
    """What the built files are the build of: a hash over the names and texts of all sources."""
    digest = sha256()
    files = [JAVA / "pom.xml", *(JAVA / "src").rglob("*.java"), *(JAVA / "src").rglob("*.json")]
    for file in sorted([*files, *(ROOT / "protos").rglob("*.proto")]):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def maven(*goals: str) -> int:
    """Run Maven; returns the exit code."""
    command = ["mvn", "--batch-mode", "--quiet", "--no-transfer-progress", *goals]
    return subprocess.run(command, cwd=JAVA, check=False).returncode


def build() -> int:
    """Compile, unless that was done; returns the exit code."""
    now = pin()
    if STAMP.exists() and STAMP.read_text() == now:
        return 0
    STAMP.unlink(missing_ok=True)
    code = maven("test-compile")
    if code == 0:
        STAMP.write_text(now)
    return code


def test() -> int:
    """Build and run the tests; returns the exit code."""
    now = pin()
    code = maven("test")
    if code == 0:
        STAMP.write_text(now)
    return code


if __name__ == "__main__":
    steps = {"build": build, "test": test}
    match sys.argv[1:]:
        case [name] if name in steps:
            STAMP.parent.mkdir(exist_ok=True)
            with (STAMP.parent / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # whoever needs it meanwhile waits for this build
                sys.exit(steps[name]())
    sys.exit(__doc__)
