"""Which host the users may load, and the tenants' keys if the router requires them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.target import is_beyond, refusal

MAX_BYTES = 100_000
_LINE = re.compile(r"\s*(?P<tenant>[\w.\-]+)\s*:\s*(?P<key>[!-~]{1,512})\s*")


@dataclass(frozen=True)
class Access:
    """Decided when Locust starts; its page changes neither. `keys` None: tenants send only their names."""

    beyond: bool = False
    keys: Mapping[str, str] | None = field(default=None, repr=False)
    fault: str = ""
    """Why nothing can be played; empty if it can."""

    def refusal(self, host: str | None, tenants: Iterable[str] = ()) -> str:
        """Why these tenants must not ask this host; empty if they may."""
        if why := self.fault or refusal(host, beyond=self.beyond):
            return why
        missing = [tenant for tenant in tenants if self.keys is not None and tenant not in self.keys]
        return f"the file of keys has none for {', '.join(missing)}" if missing else ""

    def warning(self, host: str) -> str:
        """The warning before load is sent to another machine; else empty."""
        if not is_beyond(host):
            return ""
        open_keys = self.keys is not None and host.startswith("http://")
        keys = " The keys go there unencrypted." if open_keys else ""
        return f"{host} is another machine, and is about to be loaded: is it yours, and does its owner know?{keys}"

    def headers(self, tenant: str) -> dict[str, str]:
        shown = {} if self.keys is None else {"Authorization": f"Bearer {self.keys[tenant]}"}
        return {"X-Tenant": tenant, **shown}


def access(beyond: bool, keys_file: str) -> Access:
    """From the command line. A file that cannot be read becomes `Access.fault`."""
    try:
        return Access(beyond, read_keys(Path(keys_file)) if keys_file else None)
    except ValueError as error:
        return Access(beyond, fault=str(error))


def read_keys(path: Path) -> dict[str, str]:
    """Read lines `tenant: key`; blank lines and `#` lines are ignored. Raises ValueError, without a key in its text."""
    try:
        with path.open("rb") as opened:
            text = opened.read(MAX_BYTES).decode("ascii")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: keys are ASCII") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or found["tenant"] in keys:
            raise ValueError(f"{path}, line {number}: `tenant: key` was expected, once for each tenant")
        keys[found["tenant"]] = found["key"]
    return keys
