"""Who calls: from a bearer token, a client certificate, or nobody by name on loopback.

The tenant comes from the credential alone. A request that names another tenant in its metadata is refused, so
that nobody believes the header was heeded. Nothing is cached: each request is verified by one SHA-256, so
a token that was taken out of the config is dead with the reload.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lineside_service.core.errors import Failure
from lineside_service.edge.access import ALL_SCOPES, Scope
from lineside_service.edge.refusals import denied, unauthenticated

LOCAL_TENANT: Final = "local"
"""Whose tenant an anonymous caller is."""
TOKEN_PREFIX: Final = "ls_"  # noqa: S105 - what secret scanners recognise a token by, not a secret
TOKEN_BYTES: Final = 32
TENANT_HEADERS: Final = frozenset({"x-tenant-id", "x-tenant", "tenant", "lineside-tenant"})
"""Metadata that callers of other systems name a tenant by; here it may only agree with the credential."""

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A verified caller."""

    tenant: str
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token as the config has it: digest is the SHA-256 of its text; expires_s in Unix seconds."""

    digest: bytes
    tenant: str
    scopes: frozenset[Scope]
    expires_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRule:
    """Whom a client certificate stands for, by one of its subject alternative names."""

    san: str
    tenant: str
    scopes: frozenset[Scope] = frozenset({Scope.CALL, Scope.READ})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token fresh from the mint: `text` is shown once, `digest_hex` goes into the config."""

    text: str
    digest_hex: str


def new_token(draw: Callable[[int], bytes]) -> NewToken:
    """Make a token of 256 bits. draw: gives that many random bytes (`secrets.token_bytes`)."""
    text = TOKEN_PREFIX + base64.urlsafe_b64encode(draw(TOKEN_BYTES)).decode().rstrip("=")
    return NewToken(text=text, digest_hex=digest_of(text).hex())


def digest_of(token: str) -> bytes:
    """What is kept of a token. It has 256 random bits, so a plain hash cannot be turned back."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


class Authenticator:
    """Turns metadata and certificate into an Identity.

    anonymous: whether a caller without any credential is tenant `local` with all scopes.
    wall: Unix seconds, for expiry.
    """

    def __init__(
        self,
        *,
        tokens: Iterable[Token] = (),
        certificates: Iterable[CertificateRule] = (),
        anonymous: bool,
        wall: Callable[[], float],
    ) -> None:
        self._wall = wall
        self._nobody = Identity(tenant=LOCAL_TENANT, scopes=ALL_SCOPES)
        self.replace(tokens=tokens, certificates=certificates, anonymous=anonymous)

    @property
    def anonymous(self) -> bool:
        """Whether callers without a credential are let in."""
        return self._anonymous

    def replace(
        self, *, tokens: Iterable[Token], certificates: Iterable[CertificateRule], anonymous: bool
    ) -> None:
        """Take who may call from a reloaded config, effective with the next request."""
        self._anonymous = anonymous
        self._tokens = {token.digest: token for token in tokens}
        self._certificates = {rule.san: rule for rule in certificates}

    def identify(
        self, metadata: Metadata, certificate: Callable[[], Mapping[str, Iterable[bytes]]]
    ) -> Identity | Failure:
        """The caller's identity, or why there is none.

        certificate: gives grpc's auth context; only asked when certificates are mapped.
        """
        header, claims, twice = _scan(metadata)
        if twice:
            return unauthenticated("metadata `authorization` is given more than once", "TOKEN_AMBIGUOUS")
        identity = self._identity(header, certificate)
        if isinstance(identity, Failure):
            return identity
        if any(claim != identity.tenant for claim in claims):
            return denied("the metadata names another tenant than the credential", "TENANT_MISMATCH")
        return identity

    def _identity(
        self, header: str | None, certificate: Callable[[], Mapping[str, Iterable[bytes]]]
    ) -> Identity | Failure:
        by_certificate = self._by_certificate(certificate()) if self._certificates else None
        if isinstance(by_certificate, Failure):
            return by_certificate
        if header is None:
            return by_certificate or self._without_credential()
        by_token = self._by_token(header)
        if isinstance(by_token, Failure) or by_certificate is None:
            return by_token
        if by_token.tenant != by_certificate.tenant:
            return denied("token and client certificate belong to different tenants", "CREDENTIALS_DISAGREE")
        return by_token

    def _by_token(self, header: str) -> Identity | Failure:
        scheme, _, text = header.partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            return unauthenticated("metadata `authorization` must be `Bearer TOKEN`", "TOKEN_MALFORMED")
        digest = digest_of(text)
        token = self._tokens.get(digest)
        if token is None or not hmac.compare_digest(token.digest, digest):
            return unauthenticated("the token is not known here", "TOKEN_UNKNOWN")
        if token.expires_s is not None and token.expires_s <= self._wall():
            return unauthenticated("the token has expired", "TOKEN_EXPIRED")
        return Identity(tenant=token.tenant, scopes=token.scopes)

    def _by_certificate(self, auth_context: Mapping[str, Iterable[bytes]]) -> Identity | Failure | None:
        names = auth_context.get("x509_subject_alternative_name", ())
        found = [self._certificates.get(name.decode(errors="replace")) for name in names]
        rules = [rule for rule in found if rule is not None]
        if len({rule.tenant for rule in rules}) > 1:
            return denied("the client certificate stands for several tenants", "CERTIFICATE_AMBIGUOUS")
        if not rules:
            return None
        return Identity(tenant=rules[0].tenant, scopes=frozenset().union(*(rule.scopes for rule in rules)))

    def _without_credential(self) -> Identity | Failure:
        if self._anonymous:
            return self._nobody
        return unauthenticated("send metadata `authorization: Bearer TOKEN`", "TOKEN_MISSING")


def _scan(metadata: Metadata) -> tuple[str | None, list[str], bool]:
    """The authorization header, what tenants are claimed, and whether there are two headers."""
    header: str | None = None
    claims: list[str] = []
    twice = False
    for key, value in metadata:
        if key == "authorization":
            twice = twice or header is not None
            header = _text(value)
        elif key in TENANT_HEADERS:
            claims.append(_text(value))
    return header, claims, twice


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
