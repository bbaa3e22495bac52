"""The description of a service's API is a valid OpenAPI document whose references all lead somewhere."""

from __future__ import annotations

import re

import pytest
from openapi_spec_validator import validate

from services.router.app import build as router
from services.runtime.service import Service
from services.worker.app import build as worker
from services.worker.config import WorkerSettings
from tests.router.rig import GivenSettings


@pytest.mark.parametrize("name", ["router", "worker"])
def test_the_description_is_valid_and_every_reference_leads_somewhere(name: str) -> None:
    process = router(GivenSettings()) if name == "router" else worker(WorkerSettings())
    service = process.listener.app  # type: ignore[attr-defined]
    assert isinstance(service, Service)
    document = service.api.openapi()
    validate(document)
    named = set(re.findall(r"#/components/schemas/([\w.]+)", repr(document)))
    assert named
    assert named <= set(document["components"]["schemas"])
