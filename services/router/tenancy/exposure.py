"""Where lab mode and the example keys are allowed: on this machine only (docs/operations/tenants.md).

In a container HOST means nothing, since containers listen on all of their addresses; there PUBLISHED_ADDRESS counts,
which compose sets from ROUTER_ADDRESS. LAB_NETWORK=true allows another network that only this machine reaches. The
check knows only these settings: a port published by an override file, or a proxy on this machine that forwards to
loopback, makes lab mode public.
"""

from __future__ import annotations

from typing import NamedTuple

from services.router.tenancy.tenantsfile import TenantsFile
from services.runtime.addresses import is_loopback


class Lab(NamedTuple):
    """The settings that decide: HOST, PUBLISHED_ADDRESS and LAB_NETWORK."""

    host: str
    published_address: str = ""
    network: bool = False

    @property
    def reached(self) -> str:
        """The setting, with its value, by which clients reach the router."""
        published = self.published_address
        return f"PUBLISHED_ADDRESS={published}" if published else f"HOST={self.host}"

    @property
    def is_safe(self) -> bool:
        """Whether lab mode and example keys are allowed here."""
        return self.network or is_loopback(self.published_address or self.host)

    @property
    def ways(self) -> str:
        """The other remedies, for a message."""
        kept = "ROUTER_ADDRESS=127.0.0.1" if self.published_address else "HOST=127.0.0.1"
        return f"or {kept}, or LAB_NETWORK=true if only this machine reaches the port"


def fault(lab: Lab, file: TenantsFile | None) -> str | None:
    """Why the router must not start like this, with the remedies; None if it may."""
    if lab.is_safe:
        return None
    if file is None:
        without = "without TENANTS_FILE clients name their own tenant: set it"
        return f"{lab.reached} is not loopback, and {without}, {lab.ways}"
    posed = file.with_example_keys
    if posed:
        return (
            f"{lab.reached} is not loopback, and {', '.join(posed[:5])} in TENANTS_FILE still have the example keys: "
            f"make new ones with `weir keys new`, {lab.ways}"
        )
    return None
