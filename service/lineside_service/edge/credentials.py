"""TLS credentials of the server, renewable while it runs."""

from __future__ import annotations

import grpc

from lineside_service.edge.settings import TlsFiles


class ServerCredentials:
    """Certificate and key; with a client CA, callers must show a certificate that it signed.

    Which tenant a certificate stands for is the Authenticator's to say.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._current = _configuration(files)
        self.grpc = grpc.dynamic_ssl_server_credentials(
            self._current, lambda: self._current, require_client_authentication=files.client_ca is not None
        )

    def replace(self, files: TlsFiles) -> None:
        """Use these from the next handshake on; whether callers are asked for certificates stays."""
        self._current = _configuration(files)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(files.key, files.certificate)], root_certificates=files.client_ca
    )
