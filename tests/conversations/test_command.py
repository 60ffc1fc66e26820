from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import conversations

EXAMPLES = Path(conversations.__file__).parents[1]
DEMO = ("env", f"PYTHONPATH={EXAMPLES}", sys.executable, "-m", "conversations")

# Runs a command on a terminal of its own: what is typed comes from stdin, what is shown goes to stdout.
ON_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def _service_is_gone(directory: Path) -> bool:
    pid = json.loads((directory / "build/demo/demo.sqlite.lock").read_text())["pid"]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_run_in_order_exits_with_zero_and_writes_its_figures(tmp_path: Path) -> None:
    """Off a terminal: nothing on stderr, no colour, the summary as JSON beside the config."""
    command = (*DEMO, "--no-faults", "--conversations", "3")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    figures = json.loads((tmp_path / "build/demo.json").read_text())
    assert (figures["conversations"], figures["states_equal"], figures["seed"]) == (3, 3, None)
    assert f"{figures['effects_once']}/{figures['final_calls']}" in done.stdout
    assert _service_is_gone(tmp_path)


def _read_until(part: bytes, descriptor: int) -> bytes:
    shown = b""
    while part not in shown:
        shown += (read := os.read(descriptor, 4096))
        assert read, shown
    return shown


def test_ctrl_c_stops_the_service_too(tmp_path: Path) -> None:
    """Typed on a terminal in the middle of a run: one line, exit code 130, no process left, no figures."""
    command = (sys.executable, "-c", ON_A_TERMINAL, *DEMO)
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        shown = _read_until(b"/1,142 calls", running.stdout.fileno())
        running.stdin.write(b"\x03")
        running.stdin.flush()
        shown += running.stdout.read()
    assert running.returncode == 130, shown
    assert shown.endswith(b"\x1b[Kstopped, and the service with it\r\n")
    assert b"Traceback" not in shown
    assert _service_is_gone(tmp_path)
    assert not (tmp_path / "build/demo.json").exists()


def test_sigterm_stops_the_service_too(tmp_path: Path) -> None:
    """As a supervisor would: exit code 143, no process left."""
    screen, terminal = os.openpty()
    try:
        with subprocess.Popen(DEMO, cwd=tmp_path, stderr=terminal) as running:
            _read_until(b"/1,142 calls", screen)
            running.send_signal(signal.SIGTERM)
            _read_until(b"stopped, and the service with it", screen)
    finally:
        os.close(screen)
        os.close(terminal)
    assert running.returncode == 143
    assert _service_is_gone(tmp_path)
