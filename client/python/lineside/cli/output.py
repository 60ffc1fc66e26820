"""What goes to stdout and stderr: colour, tables and progress on a terminal only, JSON lines for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from lineside.answer import BatchResult
from lineside.cli import advice
from lineside.cli.story import story
from lineside.errors import DispatchError
from lineside.record import CallRecord


def plain(value: Any) -> Any:
    """A record, tool, answer or error as JSON can hold it."""
    if isinstance(value, DispatchError):
        names = (
            "kind",
            "message",
            "reason",
            "outcome",
            "attempts",
            "retry_after_s",
            "call_id",
            "trace_id",
            "next",
            "violations",
            "stopped_by",
        )
        return {name: plain(getattr(value, name)) for name in names}
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value) if field.name != "message" or field.repr)
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return value


def batch_line(result: BatchResult, line: int) -> dict[str, Any]:
    """One line of `lineside batch`'s output."""
    # Not `result.item_id`: a call without one has its place there, a second numbering beside the lines'.
    head = {"item_id": result.call.item_id or str(line), "line": line, "ok": result.answer is not None}
    if result.answer is not None:
        return head | plain(result.answer)  # type: ignore[no-any-return]
    return head | {"error": plain(result.error)}


@dataclasses.dataclass(slots=True)
class Tally:
    """What a batch came to so far."""

    done: int = 0
    said_no: int = 0
    failed: int = 0
    unreached: int = 0
    unknown: int = 0

    def count(self, error: DispatchError | None, *, said_no: bool) -> None:
        """Counts one ended call, or one line that was none."""
        code = advice.exit_code(error) if error is not None else advice.OK
        self.done += error is None
        self.said_no += said_no
        self.failed += code == advice.FAILED
        self.unreached += code == advice.UNREACHED
        self.unknown += code == advice.UNKNOWN

    def __str__(self) -> str:
        counts = ((getattr(self, field.name), field.name) for field in dataclasses.fields(self))
        return ", ".join(
            f"{count} {name.replace('_', ' ')}" for count, name in counts if count or name == "done"
        )

    @property
    def exit_code(self) -> int:
        """The worst of all."""
        ladder = (
            (self.unknown, advice.UNKNOWN),
            (self.unreached, advice.UNREACHED),
            (self.failed, advice.FAILED),
            (self.said_no, advice.TOOL_ERROR),
        )
        return next((code for count, code in ladder if count), advice.OK)


def show_json(value: Any) -> None:
    """Indented and coloured on a terminal, one line elsewhere."""
    console = Console()
    if console.is_terminal:
        console.print_json(json.dumps(value, ensure_ascii=False))
    else:
        show_line(value)


def show_line(value: Any) -> None:
    """One JSON line on stdout, at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def show_record(record: CallRecord, *, as_json: bool) -> None:
    """The call's story on a terminal; one JSON line elsewhere, or if asked for."""
    if as_json or not sys.stdout.isatty():
        show_line(plain(record))
        return
    console = Console(highlight=False, soft_wrap=True)
    head, *rest = story(record)
    console.print(Text(head, style="bold"), *(Text(line) for line in rest), sep="\n")


def show_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], whole: Iterable[Any], *, keep: int = 0
) -> int:
    """A table of the rows on a terminal, the whole records as JSON lines elsewhere; returns how many.

    Both are read lazily. keep: so many columns from the left are shown whole however narrow the terminal.
    """
    console = Console()
    count = 0
    if not console.is_terminal:
        for count, record in enumerate(whole, 1):  # noqa: B007 - the count is the result
            show_line(plain(record))
        return count
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position < keep, overflow="fold")
    for row in rows:
        # Text, not markup: a description may hold square brackets.
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console.print(table if table.row_count else Text("none"))
    return table.row_count


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yields what shows a text in place of the one before: on stderr, where that alone is a terminal.

    Results on the same terminal show the progress themselves, and would run into it.
    """
    console = Console(stderr=True)
    if not console.is_terminal or sys.stdout.isatty():
        yield lambda _: None
        return
    spinner = Spinner("dots")
    # Live takes stdout over unless told otherwise, and stdout is a file or a pipe here.
    with Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False):
        yield lambda text: spinner.update(text=Text(text))


def show_error(error: DispatchError, *, keyed: bool = False, hint: str = "") -> None:
    """The error on stderr, with what to do. keyed: the call had an idempotency key. hint: one line more."""
    first, *rest = advice.explain(error, keyed=keyed)
    rest += [f"  hint: {hint}"] if hint else []
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("lineside: ", "bold red"), first, *(f"\n{line}" for line in rest)))


def note(text: str, *, always: bool = False) -> None:
    """A remark on stderr, on a terminal only unless `always`."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal or always:
        console.print(Text(text, style="dim"))
