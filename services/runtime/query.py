"""The query of a URL, read as strictly as a body: an unknown or repeated name is refused."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

from services.runtime.errors import BadInput

MAX_PARAMETERS = 16


def parameters(query: bytes, known: Collection[str]) -> dict[str, str]:
    """Name and value of each parameter. Raises BadInput that names an unknown, repeated or invalid one."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )  # fmt: skip
    except ValueError:
        raise BadInput("malformed query string: use name=value pairs joined by &, percent-encoded as UTF-8") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise BadInput(f"{name[:64]}: unknown parameter; the parameters are {', '.join(known)}", name[:64])
        if name in found:
            raise BadInput(f"{name}: is given twice", name)
        if "\x00" in value:
            raise BadInput(f"{name}: contains NUL", name, code="invalid_text")
        found[name] = value
    return found
