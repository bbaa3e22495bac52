"""`weir keys new`: a key for a tenant, shown once, and its line for the tenants file."""

from __future__ import annotations

import re

from rich.console import Console

from services.runtime.apikey import new_key

TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
RESERVED = "other"


def name_fault(tenant: str) -> str | None:
    """What is wrong with a tenant's name; None for nothing."""
    if not TENANT.fullmatch(tenant):
        return "a tenant is 1 to 64 letters, digits, dots, dashes or underscores"
    return f"{RESERVED} is reserved: unknown tenants are counted under it" if tenant == RESERVED else None


def new(console: Console, tenant: str) -> None:
    """Make a key and print it. It is stored nowhere, so a lost key must be replaced."""
    key, written = new_key()
    of_tenant = f" of {tenant}" if tenant else ""
    lines = [f'    - id: "{tenant}"', f'      keys: ["{written}"]'] if tenant else [f'    "{written}"']
    text = (
        f"The key{of_tenant}, shown this once and stored nowhere:\n\n    {key}\n\n"
        "Only its hash belongs in TENANTS_FILE, under `tenants:`\n\n" + "\n".join(lines) + "\n\n"
        "Then `kill -HUP` the router: it reloads the file, and keeps the old one if the new one has a fault.\n"
        "To replace a key, list both hashes in `keys` until its owner uses the new key: two are allowed."
    )
    console.print(text, markup=False, soft_wrap=True)
