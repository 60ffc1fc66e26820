"""The options that every command has: where the service is and who calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lineside.channel import DEFAULT_TARGET
from lineside.cli import advice
from lineside.cli.output import show_error
from lineside.client import Client
from lineside.errors import DispatchError

_PANEL = "Connection"


def _options(
    *,
    target: Annotated[
        str,
        typer.Option(envvar="LINESIDE_TARGET", rich_help_panel=_PANEL, help="host:port of the service."),
    ] = DEFAULT_TARGET,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LINESIDE_TOKEN",
            rich_help_panel=_PANEL,
            show_default=False,
            help="Bearer token; other users see options in the process list, so better use the variable.",
        ),
    ] = None,
    insecure_token: Annotated[
        bool,
        typer.Option("--insecure-token", rich_help_panel=_PANEL, help="Send the token over plaintext too."),
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", rich_help_panel=_PANEL, help="TLS with the system's authorities.")
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            envvar="LINESIDE_CA",
            rich_help_panel=_PANEL,
            exists=True,
            dir_okay=False,
            help="PEM file of the authorities to trust; implies --tls.",
        ),
    ] = None,
    client_cert: Annotated[
        Path | None,
        typer.Option(
            envvar="LINESIDE_CLIENT_CERT",
            rich_help_panel=_PANEL,
            exists=True,
            dir_okay=False,
            help="PEM file of your own certificate (mTLS).",
        ),
    ] = None,
    client_key: Annotated[
        Path | None,
        typer.Option(
            envvar="LINESIDE_CLIENT_KEY",
            rich_help_panel=_PANEL,
            exists=True,
            dir_okay=False,
            help="PEM file of its private key.",
        ),
    ] = None,
) -> Client:
    """Makes the client."""
    try:
        return Client(
            target,
            token=token,
            insecure_token=insecure_token,
            tls=tls or None,
            ca=ca,
            client_cert=client_cert,
            client_key=client_key,
        )
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def connected(command: Callable[..., int]) -> Callable[..., None]:
    """A command with the connection's options. It takes the client first and returns the exit code."""
    own = inspect.signature(command, eval_str=True)
    shared = inspect.signature(_options, eval_str=True)
    _, *rest = own.parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        with _options(**{name: given.pop(name) for name in shared.parameters}) as client:
            try:
                code = command(client, **given)
            except DispatchError as error:
                show_error(error, keyed=given.get("key") is not None)
                code = advice.exit_code(error)
            except KeyboardInterrupt:
                code = advice.INTERRUPTED
        raise typer.Exit(code)

    parameters = [*rest, *shared.parameters.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
