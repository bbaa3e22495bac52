"""The files of TLS are looked at before anything starts, and each fault names its setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.runtime.tls import NO_TLS, TlsFiles, tls_faults
from tests.router.rig import GivenSettings


def test_without_files_there_is_no_fault_and_no_tls() -> None:
    assert list(tls_faults(NO_TLS)) == []
    assert NO_TLS.settings() == {}


@pytest.mark.parametrize(
    "given", [TlsFiles(Path("c"), None), TlsFiles(None, Path("k")), TlsFiles(None, None, Path("a"))]
)
def test_a_certificate_needs_its_key_and_a_clients_authority_needs_both(given: TlsFiles) -> None:
    (fault,) = tls_faults(given)
    assert "both TLS_CERT_FILE and TLS_KEY_FILE" in fault


def test_every_file_that_cannot_be_used_is_named_at_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    found = list(tls_faults(TlsFiles(broken, broken, broken)))
    assert [fault.partition(":")[0] for fault in found] == ["TLS_CERT_FILE, TLS_KEY_FILE", "TLS_CLIENT_CA_FILE"]
    with pytest.raises(ValidationError, match="TLS_CLIENT_CA_FILE"):
        GivenSettings(tls_cert_file=broken, tls_key_file=broken, tls_client_ca_file=broken)
