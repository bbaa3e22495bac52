"""Who is asking. Lab mode: the name is believed, so only a bounded number of them is kept apart.

Every tenant name here becomes a metric label and state, so the set is closed: the first `max_names` that appear are
kept apart, and all later ones share `other`. An invented identity per request costs nothing and gains nothing.
"""

from __future__ import annotations

import re

from services.runtime.errors import BadInput

OTHER = "other"
DEMO = "demo"
_NAME = re.compile(r"^[A-Za-z0-9._-]{1,64}$")


class LabTenants:
    """Tenants by their word alone, for a loopback or compose network only."""

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._names = {DEMO}

    def identify(self, header: bytes | None, body: str | None) -> str:
        """The tenant of a request: `X-Tenant`, else the body's `tenant`, else demo. Raises BadInput."""
        if header is not None:
            return self._known(header.decode("latin-1"), "X-Tenant")
        return DEMO if body is None else self._known(body, "tenant")

    def _known(self, name: str, param: str) -> str:
        if name in self._names:
            return name
        if not _NAME.match(name):
            raise BadInput(f"{param}: a tenant is 1 to 64 letters, digits, dots, dashes or underscores", param)
        if len(self._names) >= self._max_names:
            return OTHER
        self._names.add(name)
        return name

    def __repr__(self) -> str:
        return f"<LabTenants {len(self._names)}/{self._max_names}>"
