"""Settings of the desk."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import Field

from services.runtime.settings import ServiceSettings

MAX_SERVERS = 256
MAX_SLOTS = 100_000
AUTO = "auto"
SERVER = re.compile(rf"([A-Za-z0-9._-]{{1,64}})=([1-9][0-9]{{0,5}}|{AUTO})")


class DeskSettings(ServiceSettings):
    """The servers whose books it keeps."""

    desk_port: int = Field(8020, ge=0, le=65535, description="port of the desk")
    metrics_port: int = Field(9020, ge=0, le=65535, description="port of the desk's metrics listener")
    desk_servers: str = Field(
        "", description="servers and their slots, as name=slots, separated by commas; auto: slots that are learned"
    )
    desk_max_slots: int = Field(256, ge=1, le=MAX_SLOTS, description="the most slots that auto may find, of one server")
    desk_hold_s: float = Field(
        120.0,
        ge=0,
        le=3600,
        description="how long the slots of a router that is gone stay taken, seconds: the routers' MAX_DEADLINE_MS",
    )

    @property
    def servers(self) -> dict[str, int | None]:
        """Slots by server, None where they are learned. Entries that are faulty are left out."""
        found = [SERVER.fullmatch(entry) for entry in self._entries]
        return {match[1]: None if match[2] == AUTO else int(match[2]) for match in found if match is not None}

    @property
    def _entries(self) -> list[str]:
        return [entry.strip() for entry in self.desk_servers.split(",") if entry.strip()]

    def contradictions(self) -> Iterator[str]:
        """Settings that are valid alone but not together."""
        yield from super().contradictions()
        yield from self.inner_faults("HOST", "METRICS_HOST")
        entries, servers = self._entries, self.servers
        if len(entries) > MAX_SERVERS:
            yield f"DESK_SERVERS: names {len(entries)} servers: at most {MAX_SERVERS}"
        for entry in entries:
            if SERVER.fullmatch(entry) is None:
                yield (
                    f"DESK_SERVERS: {entry!r} is not name=slots, with a name of up to 64 letters, digits, '.', '_' "
                    "and '-', and 1 to 100000 slots or auto"
                )
        for name, slots in servers.items():
            if slots is not None and slots > MAX_SLOTS:
                yield f"DESK_SERVERS: {name} has {slots} slots: at most {MAX_SLOTS}"
        names = [entry.partition("=")[0] for entry in entries]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"DESK_SERVERS: {name} is named twice"
