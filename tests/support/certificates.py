"""Throw-away certificates: an authority, a server's for loopback, callers' by name."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs what tests ask for; everything is valid for a day."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate, PEM."""
        return self._certificate.public_bytes(_PEM)

    def server(self) -> Pair:
        """For localhost and 127.0.0.1."""
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self._pair("server", names)

    def caller(self, san: str) -> Pair:
        """For a caller of that name, a DNS name or a URI."""
        return self._pair(
            "caller", [x509.UniformResourceIdentifier(san) if ":" in san else x509.DNSName(san)]
        )

    def _pair(self, name: str, sans: list[x509.GeneralName]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(subject, key)
            .add_extension(x509.SubjectAlternativeName(sans), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Pair(certificate.public_bytes(_PEM), pem)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )
