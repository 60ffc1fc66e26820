"""Pages (AIP-158): sizes, and opaque tokens that only this service can have made for the same question."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from lineside_service.core.errors import Failure
from lineside_service.edge.refusals import bad_field

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000
_MAC_BYTES: Final = 16
_MAX_TOKEN: Final = 1024


def page_size(asked: int) -> int | Failure:
    """How many to answer with: 0 = the default, over the maximum = the maximum, negative is refused."""
    if asked < 0:
        return bad_field("page_size", f"{asked}: 0-{MAX_PAGE} (0 = {DEFAULT_PAGE})", "RANGE")
    return min(asked or DEFAULT_PAGE, MAX_PAGE)


class PageTokens:
    """Makes and reads page tokens. secret: 32 random bytes; another one makes all earlier tokens void."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, position: str, *question: str) -> str:
        """A URL-safe token for what comes after `position`. question: method, tenant and filters."""
        text = position.encode()
        return base64.urlsafe_b64encode(self._mac(text, question) + text).decode().rstrip("=")

    def read(self, token: str, *question: str) -> str | Failure:
        """The position; "" for an empty token; a Failure for one made for another question, or not here."""
        if not token:
            return ""
        try:
            raw = base64.b64decode(token[:_MAX_TOKEN] + "=" * (-len(token) % 4), b"-_", validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        mac, text = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(text, question)):
            return bad_field(
                "page_token",
                "not the next_page_token of a page with these filters; begin again without it",
                "PAGE_TOKEN",
            )
        return text.decode()

    def _mac(self, position: bytes, question: tuple[str, ...]) -> bytes:
        parts = [position, *(part.encode(errors="replace") for part in question)]
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self._secret, text, hashlib.sha256).digest()[:_MAC_BYTES]
