"""Identifies a request's tenant: by its key (`FileTenants`), or in lab mode by the name it gives (`LabTenants`).

A tenant is state and a metric label, so the set is closed: by the file, and in lab mode by `max_names`, after which all
others share `other`. So invented names cost nothing, however many there are. Records are replaced, never changed: a
request keeps the record of its admission through every reload.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from services.contracts.documents import QUOTA_BYTES_HEADER, QUOTA_COUNT_HEADER
from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.router.tenancy import tenantsfile
from services.router.tenancy.keys import KeyRing, bearer
from services.router.tenancy.rates import Rate
from services.router.tenancy.tenantsfile import DEFAULT_CLASS, TenantEntry, TenantsFile
from services.runtime.errors import BadInput, Unauthorized

OTHER = "other"
DEMO = "demo"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

ReadHeader = Callable[[bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `id` is its name in the core, in metrics and in cache keys."""

    id: str
    class_name: str = DEFAULT_CLASS
    slo_ms: float | None = None
    """The deadline of requests that name none, and the longest that they may name; None: the settings."""
    degrade: bool = False
    """Whether its answers may be degraded under load."""
    models: frozenset[str] | None = None
    """The models that it may use; None: all."""
    rate: Rate | None = None
    paused: bool = False
    """Paused by an operator."""
    quota: tuple[tuple[bytes, bytes], ...] = ()
    """Its quota of documents, as headers for retrieval, which enforces it."""

    def allows(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Reload:
    """The tenants that a reload added, removed or changed."""

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class Tenants:
    """The known tenants by name. The subclasses identify a request's tenant."""

    def __init__(self, known: dict[str, Tenant]) -> None:
        self._known = known

    def identify(self, header: ReadHeader, named: str | None) -> Tenant:
        """The tenant of a request, by its headers and the name in its body. Raises BadInput or Unauthorized."""
        return self.by_header(header) or self.by_body(named)

    def by_header(self, header: ReadHeader) -> Tenant | None:
        """The tenant by the headers alone; None: the body decides."""
        raise NotImplementedError

    def by_body(self, named: str | None) -> Tenant:
        """The tenant by the body's name, for a request whose headers do not decide."""
        raise NotImplementedError

    def specs(self) -> list[TenantSpec]:
        """The scheduler's specs of the configured tenants. Others get the spec `unconfigured`."""
        return []

    def classes(self) -> tuple[ClassSpec, ...]:
        return (ClassSpec(DEFAULT_CLASS),)

    def ids(self) -> list[str]:
        """The tenant names of metrics, except `other`."""
        return [id for id in self._known if id != OTHER]

    def get(self, id: str) -> Tenant | None:
        return self._known.get(id)

    def pause(self, id: str, paused: bool = True) -> bool:
        """Pause or resume a tenant, from its next request on. False if the name is unknown."""
        tenant = self._known.get(id)
        if tenant is None:
            return False
        self._known[id] = replace(tenant, paused=paused)
        return True

    def __repr__(self) -> str:
        paused = sum(tenant.paused for tenant in self._known.values())
        return f"<{type(self).__name__} {len(self._known)}, {paused} paused>"


class LabTenants(Tenants):
    """Tenants by name, without a check. Besides `other`, the first `max_names` names are kept apart."""

    def __init__(self, max_names: int, tenant_rps: float = 0.0) -> None:
        self._max_names = max_names
        self._tenant_rps = tenant_rps
        super().__init__({name: self._new(name) for name in (OTHER, DEMO)})

    def by_header(self, header: ReadHeader) -> Tenant | None:
        """The tenant of `X-Tenant`, if there is one. Raises BadInput."""
        name = header(b"x-tenant")
        return None if name is None else self._by_name(name.decode("latin-1"), "X-Tenant")

    def by_body(self, named: str | None) -> Tenant:
        """The tenant that the body names, else demo. Raises BadInput."""
        return self._known[DEMO] if named is None else self._by_name(named, "tenant")

    def _by_name(self, name: str, param: str) -> Tenant:
        tenant = self._known.get(name)
        if tenant is not None:
            return tenant
        if not _NAME.fullmatch(name):
            raise BadInput(f"{param}: a tenant is 1 to 64 letters, digits, dots, dashes or underscores", param)
        if len(self._known) > self._max_names:
            return self._known[OTHER]
        tenant = self._known[name] = self._new(name)
        return tenant

    def _new(self, name: str) -> Tenant:
        return Tenant(name, degrade=True, rate=Rate(self._tenant_rps) if self._tenant_rps else None)


@dataclass(frozen=True, slots=True)
class Reading:
    """A validated file, fully prepared in a thread. It takes effect when it is adopted."""

    file: TenantsFile
    tenants: dict[str, Tenant]
    specs: list[TenantSpec]
    classes: tuple[ClassSpec, ...]
    ring: KeyRing
    same: frozenset[str]
    """Tenants with equal entries in both files."""
    same_rate: frozenset[str]


class FileTenants(Tenants):
    """Tenants of TENANTS_FILE, by key. `queue_requests`: where the file names none. Raises tenantsfile.Faulty."""

    def __init__(
        self, path: Path, queue_requests: int = 64, max_slo_ms: float = inf, *, queue_bytes: float = inf
    ) -> None:
        self._path = path
        self._max_slo_ms = max_slo_ms
        self._bounds = QueueBounds(queue_requests, bytes=queue_bytes)
        self._reading = self._worked_up(None)
        super().__init__(dict(self._reading.tenants))

    def by_header(self, header: ReadHeader) -> Tenant:
        """The tenant of the request's key. Raises Unauthorized."""
        key = bearer(header(b"authorization"))
        if key is None:
            raise Unauthorized("an API key is required: send `Authorization: Bearer KEY`")
        owner = self._reading.ring.owner(key)
        if owner is None:
            raise Unauthorized("unknown API key")
        return self._known[owner]

    def specs(self) -> list[TenantSpec]:
        """Weight, class and bounds of every tenant of the file."""
        return self._reading.specs

    def classes(self) -> tuple[ClassSpec, ...]:
        return self._reading.classes

    @property
    def with_example_keys(self) -> list[str]:
        """Tenants of the file with public keys."""
        return self._reading.file.with_example_keys

    def read(self) -> Reading:
        """Read and validate the file. It changes nothing here, so it may run in a thread. Raises tenantsfile.Faulty."""
        return self._worked_up(self._reading)

    def adopt(self, reading: Reading) -> Reload:
        """Put a reading into force. Remaining tenants keep their pause, and the fill of an unchanged rate."""
        before, after = self._known, reading.tenants
        self._reading = reading
        self._known = {
            id: before[id] if id in reading.same else _taken_over(tenant, before.get(id), id in reading.same_rate)
            for id, tenant in after.items()
        }
        return Reload(
            joined=tuple(id for id in after if id not in before),
            left=tuple(id for id in before if id not in after),
            changed=tuple(id for id in after if id in before and id not in reading.same),
        )

    def _worked_up(self, before: Reading | None) -> Reading:
        file = tenantsfile.read(self._path, self._max_slo_ms)
        old = {} if before is None else {entry.id: entry for entry in before.file.tenants}
        alike = before is not None and before.file.classes == file.classes
        return Reading(
            file=file,
            tenants={entry.id: _tenant(file, entry) for entry in file.tenants},
            specs=[_spec(file, entry, self._bounds) for entry in file.tenants],
            classes=tuple(ClassSpec(entry.name, entry.weight, entry.floor) for entry in file.classes),
            ring=KeyRing(file.owners),
            same=frozenset(entry.id for entry in file.tenants if alike and entry == old.get(entry.id)),
            same_rate=frozenset(
                entry.id for entry in file.tenants if entry.id in old and entry.rate == old[entry.id].rate
            ),
        )


def _spec(file: TenantsFile, entry: TenantEntry, usual: QueueBounds) -> TenantSpec:
    queue = entry.queue
    bounds = QueueBounds(
        requests=usual.requests if queue.requests is None else queue.requests,
        cost_tokens=usual.cost_tokens if queue.cost_tokens is None else queue.cost_tokens,
        bytes=usual.bytes,
    )
    return TenantSpec(entry.id, bounds, weight=entry.weight, class_name=file.class_of(entry))


def _tenant(file: TenantsFile, entry: TenantEntry) -> Tenant:
    return Tenant(
        entry.id,
        class_name=file.class_of(entry),
        slo_ms=entry.slo_ms,
        degrade=entry.degrade,
        models=entry.allowed_models,
        rate=None if entry.rate is None else Rate(entry.rate.requests_per_s, entry.rate.tokens_per_s),
        quota=_quota(entry),
    )


def _quota(entry: TenantEntry) -> tuple[tuple[bytes, bytes], ...]:
    bounds = ((QUOTA_COUNT_HEADER, entry.documents.count), (QUOTA_BYTES_HEADER, entry.documents.bytes))
    return tuple((name, str(bound).encode("ascii")) for name, bound in bounds if bound is not None)


def _taken_over(tenant: Tenant, before: Tenant | None, same_rate: bool) -> Tenant:
    if before is None:
        return tenant
    return replace(tenant, paused=before.paused, rate=before.rate if same_rate else tenant.rate)
