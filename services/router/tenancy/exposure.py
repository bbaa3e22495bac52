"""Whom an address lets in, and what that forbids.

Two things are safe only where nobody gains by lying: lab mode, which believes the name that a client gives, and the
example keys, which everybody has read. Both are for this machine alone, or for a network that only this machine
reaches, such as compose's, whose one published port is on loopback. A process cannot see that of its network, so a
person says it: LAB_NETWORK=true. Anywhere else the router does not start.
"""

from __future__ import annotations

from services.router.tenancy.tenantsfile import TenantsFile
from services.runtime.addresses import is_loopback

LAB_MODE_WARNING = (
    "LAB MODE: every client is believed to be the tenant it names, and keys are ignored. "
    "Keep this port on loopback or in a lab network; set TENANTS_FILE for anything else."
)


def lab_is_safe(host: str, lab_network: bool) -> bool:
    """Whether lab mode and example keys may be used here."""
    return lab_network or is_loopback(host)


def fault(host: str, lab_network: bool, file: TenantsFile | None) -> str | None:
    """Why the router must not start like this, and what to do; None where it may."""
    if lab_is_safe(host, lab_network):
        return None
    ways = "or HOST=127.0.0.1, or LAB_NETWORK=true where nobody but this machine reaches the port"
    if file is None:
        return f"HOST={host} is not loopback, and without TENANTS_FILE clients are believed by name: set it, {ways}"
    posed = file.with_example_keys
    if posed:
        return (
            f"HOST={host} is not loopback, and {', '.join(posed[:5])} in TENANTS_FILE still have the example keys: "
            f"make new ones with `weir keys new`, {ways}"
        )
    return None
