"""What is dangerous about this router before a fleet: one table, for the start's log and `weir doctor --production`.

The checks are pure. They look at settings, worker list, tenants and machine, and warn; what no router may do is a fault
of the settings (`config.py`) and stops the start. The defaults fit a laptop: a setting that nobody has chosen is told
apart from one that was set to the same value (`model_fields_set`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from services.contracts.finding import ProductionFinding, Severity
from services.router.config import RouterSettings
from services.router.tenancy import tenantsfile
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.addresses import is_loopback
from services.runtime.log import Log
from services.runtime.machine import Machine
from services.runtime.server import BACKLOG

MIB = 1 << 20
PROCESS_BYTES = 256 * MIB  # interpreter, code, connections
HELD_PER_BYTE, WORST_PER_BYTE = 2, 9  # memory for a byte of a body: of a text, of the worst (docs/operations/sizing.md)


class Deployment(NamedTuple):
    """What the checks look at. `slots`: of each worker, None where they are learned or not announced yet."""

    settings: RouterSettings
    slots: Sequence[int | None]
    example_keys: Sequence[str] = ()
    """Tenants with the public keys of tenants.example.yaml."""
    open_files: int = 0
    """Descriptors that the settings need."""
    machine: Machine = Machine()


class Verdict(NamedTuple):
    severity: Severity
    seen: str
    remedy: str = ""


class Check(NamedTuple):
    """`look` returns None where there is nothing to look at. `at_start`: False where the start logs the same itself."""

    name: str
    why: str
    look: Callable[[Deployment], Verdict | None]
    at_start: bool = True


def findings(deployment: Deployment) -> list[ProductionFinding]:
    """What every check found, in the order of the table."""
    return [_finding(check, check.look(deployment)) for check in CHECKS]


def warn_of_dangers(deployment: Deployment, log: Log) -> None:
    """One line for each check that finds something, but for those that the start logs anyway."""
    for check in CHECKS:
        found = _finding(check, check.look(deployment) if check.at_start else None)
        if found.severity in ("warn", "fail"):
            log.warning(f"not for production: {found.check}", seen=found.seen, why=found.why, remedy=found.remedy)


def _finding(check: Check, verdict: Verdict | None) -> ProductionFinding:
    if verdict is None:
        return ProductionFinding(check.name, "skip", "nothing to look at")
    if not verdict.remedy:
        return ProductionFinding(check.name, verdict.severity, verdict.seen)
    return ProductionFinding(check.name, verdict.severity, verdict.seen, check.why, verdict.remedy)


def listed_slots(specs: Iterable[WorkerSpec]) -> list[int | None]:
    """Slots by the worker list."""
    return [spec.slots if isinstance(spec.slots, int) else None for spec in specs]


def current_slots(workers: Iterable[Worker]) -> list[int | None]:
    """Slots by the list and the first probe."""
    return [worker.own_slots or None if worker.limit is None else None for worker in workers]


def example_keys(settings: RouterSettings) -> list[str]:
    """Tenants that still have an example key. Reads the file: slow for thousands of tenants."""
    return [] if settings.tenants_file is None else tenantsfile.read(settings.tenants_file).with_example_keys


# ---- the checks


def _cap(deployment: Deployment) -> Verdict:
    cap, known = deployment.settings.max_inflight, sum(slots or 0 for slots in deployment.slots)
    unknown = sum(slots is None for slots in deployment.slots)
    seen = f"MAX_INFLIGHT={cap}, and the workers have {known} slots"
    if unknown:
        seen += f", beside those of {unknown} that are learned or announced"
    if known + unknown <= cap:
        return Verdict("ok", seen)
    room = f", and room for the slots of {unknown} more" if unknown else ""
    return Verdict("fail", seen, f"set MAX_INFLIGHT={known + unknown} or more{room}")


def _lab_mode(deployment: Deployment) -> Verdict:
    file = deployment.settings.tenants_file
    if file is None:
        return Verdict("fail", "no TENANTS_FILE: lab mode, without API keys", "set TENANTS_FILE, with keys of your own")
    return Verdict("ok", f"TENANTS_FILE={file}")


def _lab_network(deployment: Deployment) -> Verdict:
    if deployment.settings.lab_network:
        return Verdict("fail", "LAB_NETWORK=true", "set LAB_NETWORK=false")
    return Verdict("ok", "LAB_NETWORK=false")


def _keys(deployment: Deployment) -> Verdict | None:
    if deployment.settings.tenants_file is None:
        return None
    posed = deployment.example_keys
    if posed:
        return Verdict("fail", f"example keys: {', '.join(posed[:5])}", "replace each: `weir keys new --tenant NAME`")
    return Verdict("ok", "no example key")


def _admin(deployment: Deployment) -> Verdict:
    settings = deployment.settings
    if settings.admin_token.get_secret_value():
        return Verdict("ok", "ADMIN_TOKEN is set")
    if settings.shared_token:
        return Verdict("ok", "INTERNAL_TOKEN is the token of /admin")
    if not is_loopback(settings.metrics_host):
        return Verdict("ok", f"METRICS_HOST={settings.metrics_host}: /admin is closed without a token")
    return Verdict("fail", f"no token, and /admin is open on {settings.metrics_host}", "set ADMIN_TOKEN")


def _mechanisms(deployment: Deployment) -> Verdict:
    settings = deployment.settings
    if settings.policies.off:
        return Verdict("fail", f"POLICY={settings.policy}: {', '.join(settings.policies.off)} off", "set POLICY=weir")
    return Verdict("ok", "POLICY=weir")


def _tls(deployment: Deployment) -> Verdict:
    settings = deployment.settings
    if settings.tls.certificate is not None:
        return Verdict("ok", f"TLS_CERT_FILE={settings.tls.certificate}")
    address, reached = settings.published_address or settings.host, settings.lab.reached
    if is_loopback(address):
        return Verdict("ok", f"{reached}: a proxy on this machine may end TLS")
    remedy = "set TLS_CERT_FILE and TLS_KEY_FILE, or HOST=127.0.0.1 behind a proxy of this machine that ends TLS"
    return Verdict("warn" if _is_private(address) else "fail", f"{reached} without TLS", remedy)


def _is_private(address: str) -> bool:
    """Whether it is an address of a private network; a name and 0.0.0.0 may be any."""
    try:
        found = ip_address(address.strip("[]"))
    except ValueError:
        return False
    return found.is_private and not found.is_unspecified


def _deadlines(deployment: Deployment) -> Verdict:
    return _chosen(deployment.settings, "default_slo_ms", "max_deadline_ms", "default_ttft_ms")


def _chosen(settings: RouterSettings, *names: str) -> Verdict:
    """Whether somebody has set these settings."""
    left = [name for name in names if name not in settings.model_fields_set]
    values = ", ".join(f"{name.upper()}={getattr(settings, name):g}" for name in left or names)
    if not left:
        return Verdict("ok", values)
    remedy = f"set {', '.join(name.upper() for name in left)} for your answers (docs/operations/sizing.md)"
    return Verdict("fail", f"{values}: not set, so the lab's", remedy)


def _source_share(deployment: Deployment) -> Verdict | None:
    settings = deployment.settings
    if settings.tenants_file is None or settings.tls.certificate is not None or not is_loopback(settings.host):
        return None
    seen = f"MAX_SOURCE_SHARE={settings.max_source_share:g} on {settings.host}"
    if settings.max_source_share == 1:
        return Verdict("ok", seen)
    return Verdict("warn", seen, "set MAX_SOURCE_SHARE=1, and limit the connections of each client in the proxy")


def _open_files(deployment: Deployment) -> Verdict | None:
    limit, needed = deployment.machine.open_files, deployment.open_files
    if limit is None:
        return None
    seen = f"{limit} open files, and {needed} are needed"
    remedy = f"raise the hard limit to {needed} (`ulimit -n`, LimitNOFILE), or set a lower MAX_CONNECTIONS"
    return Verdict("ok", seen) if needed <= limit else Verdict("fail", seen, remedy)


def _processor(deployment: Deployment) -> Verdict | None:
    cores = deployment.machine.cores
    if cores is None:
        return None
    if cores >= 1:
        return Verdict("ok", f"{cores:g} cores")
    return Verdict("fail", f"{cores:.2f} of a core", "give it one core or more (cpu.max), or no quota")


def _memory(deployment: Deployment) -> Verdict | None:
    limit, settings = deployment.machine.memory_bytes, deployment.settings
    if limit is None:
        return None
    usual = PROCESS_BYTES + HELD_PER_BYTE * (settings.max_incoming_bytes + settings.max_queue_bytes)
    worst = max(usual, PROCESS_BYTES + WORST_PER_BYTE * settings.max_incoming_bytes)
    seen = f"{limit // MIB} MiB; full of texts it takes {usual // MIB}, of the worst bodies {worst // MIB}"
    if limit >= worst:
        return Verdict("ok", seen)
    remedy = f"give it {worst // MIB} MiB (memory.max), or set a lower MAX_INCOMING_BYTES"
    return Verdict("warn" if limit >= usual else "fail", seen, remedy)


def _backlog(deployment: Deployment) -> Verdict | None:
    longest = deployment.machine.backlog
    if longest is None:
        return None
    seen = f"net.core.somaxconn is {longest}, and the router asks for {BACKLOG}"
    if longest >= BACKLOG:
        return Verdict("ok", seen)
    return Verdict("fail", seen, f"`sysctl -w net.core.somaxconn={BACKLOG}`")


CHECKS = (
    Check("in-flight cap", "slots beyond the cap stay empty while requests are rejected", _cap),
    Check("lab mode", "clients name their own tenant, and keys are ignored", _lab_mode),
    Check("lab network", "lab mode, example keys and faults are accepted on any address", _lab_network),
    Check("API keys", "the example keys are public", _keys),
    Check("admin", "every program of this machine may pause tenants and drain workers", _admin),
    Check("mechanisms", "the promises of a mechanism do not hold while it is off", _mechanisms, at_start=False),
    Check("TLS", "keys and prompts can be read on their way", _tls),
    Check("deadlines", "long answers are rejected or cut, and long prompts miss their first token", _deadlines),
    Check("source share", "behind a proxy all clients are one address, which may hold no more", _source_share),
    Check("open files", "beyond the limit connections are refused", _open_files, at_start=False),
    Check("processor", "the kernel stops the router for a part of each period, and deadlines pass", _processor),
    Check("memory", "the kernel ends the router, with all its requests, when it takes more", _memory),
    Check("backlog", "in a burst the kernel drops connections, which come again after a second", _backlog),
)
