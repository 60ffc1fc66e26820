"""Making a caller's token: the secret for the caller, the block for the config."""

from __future__ import annotations

import datetime as dt
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from lineside_service.config import TokenConfig, duration_s
from lineside_service.edge.auth import new_token


class TokenRefused(ValueError):
    """The token cannot be made as asked; the text says what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeToken:
    """text: what the caller sends, 256 random bits; toml: the `[[tokens]]` block, which holds its SHA-256."""

    text: str
    toml: str


def make_token(
    *, tenant: str, scopes: Iterable[str], expires: str | None, note: str, now: dt.datetime
) -> MadeToken:
    """Make a token of a tenant. scopes: names, or several with commas; expires: a duration from `now` on.

    Raises TokenRefused.
    """
    named = sorted({name.strip() for group in scopes for name in group.split(",")})
    token = new_token(secrets.token_bytes)
    config = _checked(
        {
            "tenant": tenant,
            "sha256": token.digest_hex,
            "scopes": named,
            "expires": _end(expires, now),
            "note": note,
        }
    )
    lines = [
        "[[tokens]]",
        f"tenant = {json.dumps(config.tenant)}",
        f'sha256 = "{config.sha256}"',
        f"scopes = {json.dumps(named)}",
    ]
    if config.expires is not None:
        lines.append(f"expires = {config.expires.isoformat().replace('+00:00', 'Z')}")
    if note:
        lines.append(f"note = {json.dumps(note)}")
    return MadeToken(text=token.text, toml="\n".join(lines))


def _end(expires: str | None, now: dt.datetime) -> dt.datetime | None:
    if expires is None:
        return None
    try:
        seconds = duration_s(expires)
        end = now.replace(microsecond=0) + dt.timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise TokenRefused(f'--expires "{expires}": a duration such as 90d, 12h or 30m') from None
    if seconds <= 0:
        raise TokenRefused("--expires must lie in the future")
    return end


def _checked(block: dict[str, object]) -> TokenConfig:
    try:
        return TokenConfig.model_validate(block)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = {"tenant": "--tenant", "scopes": "--scope"}.get(str(first["loc"][0]), str(first["loc"][0]))
        words = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
        raise TokenRefused(f"{option} {first['input']!r}: {words}") from None
