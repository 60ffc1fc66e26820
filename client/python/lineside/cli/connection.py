"""The options that every command has: where the service is and who calls."""

from __future__ import annotations

import functools
import inspect
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lineside.channel import DEFAULT_TARGET
from lineside.cli import advice
from lineside.cli.output import show_error
from lineside.cli.patience import patience
from lineside.client import Client
from lineside.errors import DispatchError
from lineside.resend import DEFAULT_TIMEOUT_S


def _options(
    *,
    target: Annotated[
        str,
        typer.Option(envvar="LINESIDE_TARGET", metavar="HOST:PORT", help="Where the service is."),
    ] = DEFAULT_TARGET,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LINESIDE_TOKEN",
            metavar="TOKEN",
            show_default=False,
            help="Bearer token; other users see options in the process list, so better use the variable.",
        ),
    ] = None,
    insecure_token: Annotated[
        bool,
        typer.Option("--insecure-token", help="Send the token over plaintext too."),
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", help="TLS with the system's authorities.")] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            envvar="LINESIDE_CA",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="PEM file of the authorities to trust; implies --tls.",
        ),
    ] = None,
    client_cert: Annotated[
        Path | None,
        typer.Option(
            envvar="LINESIDE_CLIENT_CERT",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="PEM file of your own certificate (mTLS).",
        ),
    ] = None,
    client_key: Annotated[
        Path | None,
        typer.Option(
            envvar="LINESIDE_CLIENT_KEY",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="PEM file of its private key.",
        ),
    ] = None,
) -> Client:
    """Makes the client."""
    _require_pem(ca, client_cert, client_key)
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


def _require_pem(ca: Path | None, client_cert: Path | None, client_key: Path | None) -> None:
    """Raises BadParameter for a file that cannot be used; gRPC would only say that it got no connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--ca: {ca} holds no certificate in PEM form ({_reason(error)})") from error
    if client_cert is None or client_key is None:
        return
    try:
        context.load_cert_chain(client_cert, client_key, password="")  # so that nobody is asked
    except (OSError, ValueError) as error:
        files = f"{client_cert} and {client_key} are no certificate and its unencrypted key in PEM form"
        raise typer.BadParameter(f"--client-cert, --client-key: {files} ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) and error.reason else None) or str(error)


def _how_long(given: dict[str, Any]) -> str:
    """Until when a command tries, in words."""
    if given.get("key") is not None and "timeout" in given:
        return f"until {given['timeout'] or DEFAULT_TIMEOUT_S:g} s are over"
    return "a few times more"


def connected(command: Callable[..., int]) -> Callable[..., None]:
    """A command with the connection's options. It takes the client first and returns the exit code."""
    own = inspect.signature(command, eval_str=True)
    shared = inspect.signature(_options, eval_str=True)
    _, *rest = own.parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        target = given["target"]
        with _options(**{name: given.pop(name) for name in shared.parameters}) as client:
            try:
                with patience(client, target, _how_long(given)):
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
