"""The command `lineside-service`: serve, check, token, version."""

from __future__ import annotations

import datetime as dt
import gc
import shutil
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 2

app = typer.Typer(
    name="lineside-service",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Runs tool calls over gRPC and keeps their promises: deadlines, retries, idempotency keys.

    \b
    Start here:
      lineside-service check --config lineside.toml    what will each tool's rules do?
      lineside-service serve --config lineside.toml    serve until SIGTERM
      lineside-service token new --tenant acme         a credential for a caller

    \b
    Exit codes: 0 done; 1 it could not start, or died; 2 a mistake in the config or the command line;
    128 + n: a second signal n cut the drain short (130 Ctrl-C, 143 SIGTERM).
    """,
)
token_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Credentials of callers.")
app.add_typer(token_app, name="token")

ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The TOML file; paths in it start from its directory."
    ),
]


@app.command()
def serve(
    *,
    config: ConfigOption = Path("lineside.toml"),
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="gRPC address; port 0 takes a free one.")
    ] = None,
    admin_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help='/metrics, /livez, /readyz; "off" = none.')
    ] = None,
    store_path: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The database file; from the current directory.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning, error.")
    ] = None,
) -> None:
    """Serve the tools of a config file until SIGTERM or Ctrl-C.

    What a flag says wins over LINESIDE__* environment variables (LINESIDE__SERVER__GRACE=10s), and those win
    over the file. When ready, one line with the addresses is printed on stdout; logs go to stderr.

    \b
    SIGTERM, Ctrl-C   drain: no new calls, those in flight get server.grace; a second one ends at once
    SIGHUP            read the config again: tools' rules, tokens, log level; never code; a broken one is
                      refused whole and the old one stays

    \b
    Examples:
      lineside-service serve --config lineside.toml
      lineside-service serve --listen 127.0.0.1:0 --admin-listen off
      LINESIDE__STORE__KIND=memory lineside-service serve
    """  # noqa: D301 - \b is click's mark for lines to keep as they are
    said = {
        "server.listen": listen,
        "admin.listen": admin_listen,
        "store.path": str(store_path.absolute()) if store_path is not None else None,
        "telemetry.log_level": log_level,
    }
    gc.disable()  # what the start makes is no garbage, and looking for some takes a tenth of it
    try:
        from lineside_service.config.grpc_log import keep_grpc_quiet

        keep_grpc_quiet()
        from lineside_service.main import run

        code = run(config, {place: value for place, value in said.items() if value is not None})
    finally:
        gc.enable()
    raise typer.Exit(code)


@app.command()
def check(
    *,
    config: ConfigOption = Path("lineside.toml"),
    brief: Annotated[bool, typer.Option("--brief", help="One line per tool.")] = False,
) -> None:
    """Read a config, import its tools, and say in plain words what each tool's rules will do.

    Nothing is served and no database is opened. Every mistake is told, with its place in the file and what
    would be accepted; then the exit code is 2.

    \b
    Examples:
      lineside-service check --config lineside.toml
      lineside-service check --brief | grep "not idempotent"
    """  # noqa: D301 - same
    from lineside_service.commands.checking import fitted, report
    from lineside_service.config import ConfigError

    try:
        lines = list(report(config, brief=brief))
    except ConfigError as error:
        for mistake in error.mistakes:
            typer.echo(str(mistake), err=True)
        count = len(error.mistakes)
        typer.secho(f"{count} mistake{'s' if count > 1 else ''}; nothing was changed.", fg="red", err=True)
        raise typer.Exit(EXIT_CONFIG) from None
    for line in lines:
        typer.echo(fitted(line, shutil.get_terminal_size().columns) if sys.stdout.isatty() else line)


@token_app.command("new")
def token_new(
    *,
    tenant: Annotated[str, typer.Option(help="Whose calls they are; it separates keys, calls and limits.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="call, read, settle, submit, work, operate; repeatable. Default: call."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Until when it is good: 90d, 12h. Default: for ever."),
    ] = None,
    note: Annotated[str, typer.Option(help="For people who read the config.")] = "",
) -> None:
    """Make a token, print it once, and print the block that lets it in.

    Only its SHA-256 goes into the config, so it cannot be had again: give it to the caller now. Callers send
    it as metadata `authorization: Bearer TOKEN`. A running service takes it over with SIGHUP.

    \b
    Examples:
      lineside-service token new --tenant acme
      lineside-service token new --tenant acme --scope call --scope read --expires 90d
    """  # noqa: D301 - same
    from lineside_service.commands.tokens import TokenRefused, make_token

    try:
        made = make_token(
            tenant=tenant, scopes=scope or ["call"], expires=expires, note=note, now=dt.datetime.now(dt.UTC)
        )
    except TokenRefused as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CONFIG) from None
    if sys.stderr.isatty():
        typer.echo("The token, shown this once:", err=True)
    typer.echo(made.text)
    if sys.stderr.isatty():
        typer.echo("\nPaste this into the config, then restart the service or send it SIGHUP:", err=True)
    typer.echo(f"\n{made.toml}")


@app.command()
def version() -> None:
    """Print the version of the service and of what it runs on."""
    import platform
    from importlib.metadata import version as version_of

    typer.echo(f"lineside-service {version_of('lineside-service')}")
    runs_on = ", ".join(f"{name} {version_of(name)}" for name in ("grpcio", "protobuf"))
    typer.echo(f"{runs_on}, Python {platform.python_version()}")


def main() -> None:
    """Run the command line."""
    app(prog_name="lineside-service")


if __name__ == "__main__":
    main()
