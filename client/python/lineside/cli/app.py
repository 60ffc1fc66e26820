"""The commands. Each returns its exit code; the options that all of them share are in `connection`."""

from __future__ import annotations

# ruff: noqa: D301 - \b is click's mark for "keep these lines"
import itertools
import sys
from typing import Annotated, Final

import typer

import lineside
from lineside.answer import Answer
from lineside.cli import advice
from lineside.cli.connection import connected
from lineside.cli.lines import Lines, json_text, open_text
from lineside.cli.output import (
    Tally,
    batch_line,
    note,
    plain,
    progress,
    show_error,
    show_json,
    show_line,
    show_record,
    show_rows,
)
from lineside.cli.seconds import seconds
from lineside.cli.story import local, zone
from lineside.client import Client
from lineside.errors import DispatchError, NotFound, SchemaError
from lineside.record import CallRecord
from lineside.vocabulary import CallState

_ID_LENGTH: Final = 36
"""Of a call's id, a UUID as text."""

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON line on a terminal too.")]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=advice.EXIT_CODES,
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback form
    if wanted:
        typer.echo(f"lineside {lineside.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    """Run tool calls through a Lineside service.

    On a terminal you get colours and tables, elsewhere JSON lines. Results go
    to stdout, all else to stderr.

    \b
    Try:
      lineside tools
      lineside call weather '{"city": "Bern"}' --key turn-7
      lineside batch calls.jsonl > answers.jsonl
      lineside calls --unknown
    """


@app.command(epilog=advice.EXIT_CODES)
@connected
def call(
    client: Client,
    tool: Annotated[
        str, typer.Argument(metavar="TOOL", help="The tool's name; see `lineside tools`.", show_default=False)
    ],
    arguments: Annotated[
        str, typer.Argument(metavar="ARGUMENTS", help="One JSON object, or - to read it from stdin.")
    ] = "{}",
    *,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Idempotency key: makes the call safe to repeat.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="For the whole call: 5s, at most 600s. Default: 60s.",
            show_default=False,
        ),
    ] = None,
    attempt_timeout: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="For one attempt: 5s. Default: the tool's.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(metavar="N", help="Attempts the call may spend. Default: no limit.", show_default=False),
    ] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Only check tool and arguments.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Print the whole answer, not just the result.")
    ] = False,
) -> int:
    """Run one call and print its result.

    The arguments travel as given, so large integers stay exact. Repeat a call
    that ended with exit code 4 only with the --key it had: then it runs once,
    whatever happened.

    \b
    Examples:
      lineside call weather '{"city": "Bern"}'
      lineside call mail.send - --key turn-7 < mail.json
      lineside call weather '{"city": 7}' --validate
    """
    try:
        raw = json_text(arguments, "ARGUMENTS")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    answer = client.dispatch(
        tool,
        raw,
        idempotency_key=key,
        timeout_s=timeout,
        attempt_timeout_s=attempt_timeout,
        budget_tool_calls_remaining=budget,
        validate_only=validate,
    )
    if validate and sys.stdout.isatty():
        typer.echo(f"valid: {tool} takes these arguments; nothing was run")
        return advice.OK
    show_json(plain(answer) if whole or validate else answer.result)
    if not validate:
        note(_summary(answer), always=not whole)
    return advice.TOOL_ERROR if answer.tool_error else advice.OK


@app.command(epilog=advice.EXIT_CODES)
@connected
def tools(
    client: Client,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show this tool with its schemas.", show_default=False),
    ] = None,
) -> int:
    """List the tools you may call, or show one.

    \b
    Examples:
      lineside tools
      lineside tools weather
      lineside tools | jq -r 'select(.effect == "safe").name'
    """
    if name is not None:
        show_json(plain(client.get_tool(name)))
        return advice.OK
    listed, whole = itertools.tee(client.list_tools())
    columns = ("NAME", "EFFECT", "IDEMPOTENT", "TIMEOUT", "BREAKER", "RUNNING", "DESCRIPTION")
    rows = (
        (
            tool.name,
            tool.effect,
            tool.idempotency,
            f"{tool.timeout_s or 0:g} s",
            tool.breaker_state or "none",
            f"{tool.in_flight}/{tool.concurrency}",
            tool.description.partition("\n")[0],
        )
        for tool in listed
    )
    show_rows(columns, rows, whole)
    return advice.OK


@app.command(epilog=advice.EXIT_CODES)
@connected
def batch(
    client: Client,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON Lines file, or - for stdin.", show_default=False)
    ],
    *,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            show_default=False,
            help="Give each line without a key one made of PREFIX, its number and its content.",
        ),
    ] = None,
) -> int:
    """Run every line of a file as a call, as fast as the service takes them.

    A line is an object with tool, arguments and, if you like, idempotency_key,
    item_id, timeout_s, attempt_timeout_s, budget_tool_calls_remaining,
    validate_only. Each gets one line of output when it finishes, in any order:
    line is its number, ok tells whether it has an answer; else error says why.
    A line that is no call disturbs no other.

    With --keys the file may be run again after an interruption: what ran is
    replayed while its record is kept.

    The exit code is the worst of all lines: 4, else 5, else 3, else 1, else 0.

    \b
    Examples:
      lineside batch calls.jsonl > answers.jsonl
      lineside batch calls.jsonl --keys nightly-7 | jq -c 'select(.ok | not)'
    """
    try:
        source = open_text(file)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from error
    lines = Lines(source, keys)
    tally = Tally()
    try:
        with progress() as show_progress:
            for result in client.batch(lines.calls()):
                show_line(batch_line(result, lines.numbers[result.position]))
                tally.count(result.error, said_no=result.answer is not None and result.answer.tool_error)
                _show_faults(lines, tally)
                show_progress(str(tally))
    except DispatchError as error:  # it gave up: the rest of the file was not read
        tally.count(error, said_no=False)
        show_error(error)
    _show_faults(lines, tally)
    note(str(tally))
    return tally.exit_code


@app.command(epilog=advice.EXIT_CODES)
@connected
def calls(
    client: Client,
    *,
    unknown: Annotated[bool, typer.Option("--unknown", help="Only calls whose outcome is unknown.")] = False,
    state: Annotated[
        CallState | None,
        typer.Option(
            metavar="STATE", help=f"Only calls in this state: {', '.join(CallState)}.", show_default=False
        ),
    ] = None,
    tool: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only calls of this tool.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 100,
) -> int:
    """List recorded calls, oldest first. Calls without a key leave no record.

    \b
    Examples:
      lineside calls --unknown
      lineside calls --tool mail.send --limit 10
    """
    if unknown and state not in (None, CallState.UNKNOWN):
        raise typer.BadParameter("--unknown and --state contradict each other")
    wanted = CallState.UNKNOWN if unknown else state
    records = client.list_calls(state=wanted, tool=tool)
    listed, whole = itertools.tee(itertools.islice(records, limit))
    # The id first and whole: it is what the other commands take.
    columns = ("CALL", "STATE", f"STARTED ({zone()})", "TOOL", "KEY")
    rows = (
        (
            record.call_id,
            f"{record.state}{', runs' if record.attempt_in_flight else ''}",
            record.start_time and local(record.start_time),
            record.tool,
            record.idempotency_key,
        )
        for record in listed
    )
    count = show_rows(columns, rows, whole, keep=3)
    if count == limit and next(records, None) is not None:
        note(f"only the first {limit}: there are more, see --limit, --state and --tool", always=True)
    if unknown and count:
        note("settle one: lineside settle CALL --reason TEXT, and --done JSON or --not-run")
    return advice.OK


@app.command(epilog=advice.EXIT_CODES)
@connected
def get(
    client: Client,
    call_id: Annotated[
        str | None, typer.Argument(metavar="CALL", help="The call's id.", show_default=False)
    ] = None,
    *,
    tool: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --key: the tool.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="With --tool: the key.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Show one call: its state, result, attempts, and each decision with its numbers.

    \b
    Examples:
      lineside get 0190b5f0-7e2b-7cc3-8a51-3c1f3c2f9a10
      lineside get --tool mail.send --key turn-7
    """
    show_record(_record(client, call_id, tool, key), as_json=as_json)
    return advice.OK


@app.command(epilog=advice.EXIT_CODES)
@connected
def settle(
    client: Client,
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The call's id.", show_default=False)],
    *,
    reason: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="How you know; always needed, kept on the call.", show_default=False
        ),
    ],
    done: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="It took effect: its result, or - for stdin.", show_default=False),
    ] = None,
    not_run: Annotated[bool, typer.Option("--not-run", help="It had no effect and never will.")] = False,
    tool_error: Annotated[bool, typer.Option("--tool-error", help="With --done: the tool said no.")] = False,
    etag: Annotated[
        str | None,
        typer.Option(
            metavar="ETAG",
            help="Settle only if it is still as read. Default: as it is now.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Say what became of a call whose outcome is unknown. The first settlement stands.

    Later calls with its key get the result of --done, or run after --not-run.

    \b
    Examples:
      lineside settle 0190b5f0-... --done '{"id": 7}' --reason "mail 7 is in the outbox"
      lineside settle 0190b5f0-... --not-run --reason "no mail in the log of the relay"
    """
    if (done is None) != not_run:
        raise typer.BadParameter("give either --done JSON or --not-run")
    if tool_error and not_run:
        raise typer.BadParameter("--tool-error goes with --done")
    etag = etag if etag is not None else _record(client, call_id, None, None).etag
    if done is None:
        record = client.settle_call(call_id, etag, not_run=True, reason=reason)
    else:
        try:
            result = json_text(done, "--done")
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        record = client.settle_call(call_id, etag, done=result, tool_error=tool_error, reason=reason)
    show_record(record, as_json=as_json)
    return advice.OK


def _show_faults(lines: Lines, tally: Tally) -> None:
    for number, fault in lines.take_faults():
        head = {"item_id": lines.item_id(number), "line": number, "ok": False}
        show_line(head | {"error": plain(fault)})
        tally.count(fault, said_no=False)


def _summary(answer: Answer) -> str:
    took = "" if answer.run_time_s is None else f", {answer.run_time_s * 1000:.0f} ms"
    said = "the tool said no, " if answer.tool_error else ""
    attempts = f"{answer.attempts} attempt{'s' * (answer.attempts != 1)}"
    return f"{said}{answer.source or 'answered'}, {attempts}{took}, call {answer.call_id}"


def _record(client: Client, call_id: str | None, tool: str | None, key: str | None) -> CallRecord:
    try:
        return client.get_call(call_id, tool=tool, idempotency_key=key)
    except TypeError:
        raise typer.BadParameter("give either a call's id, or --tool and --key") from None
    except (NotFound, SchemaError) as error:
        if call_id is None or len(call_id) >= _ID_LENGTH:
            raise
        show_error(error, hint=f"give the whole id, {_ID_LENGTH} characters, as `lineside calls` shows it")
        raise typer.Exit(advice.exit_code(error)) from None
