"""The TLS files of a listener, checked before anything starts."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class TlsFiles(NamedTuple):
    """PEM files: a certificate chain, its key, and for mutual TLS the CA that signs clients' certificates."""

    certificate: Path | None
    key: Path | None
    client_ca: Path | None = None

    def settings(self) -> dict[str, Any]:
        """The files as arguments of `uvicorn.Config`; empty without a certificate."""
        if self.certificate is None:
            return {}
        options: dict[str, Any] = {"ssl_certfile": self.certificate, "ssl_keyfile": self.key}
        if self.client_ca is not None:
            options |= {"ssl_ca_certs": str(self.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return options


NO_TLS = TlsFiles(None, None)


def tls_faults(files: TlsFiles) -> Iterator[str]:
    if files.certificate is None or files.key is None:
        if any(files):
            yield "TLS_CERT_FILE: HTTPS needs both TLS_CERT_FILE and TLS_KEY_FILE"
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
    except OSError as error:  # includes ssl.SSLError
        yield f"TLS_CERT_FILE, TLS_KEY_FILE: the certificate or its key cannot be loaded ({error.strerror or error})"
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            yield f"TLS_CLIENT_CA_FILE: the CA certificate cannot be loaded ({error.strerror or error})"
