"""Every metric of the router, declared once. Labelled children are looked up once and kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry

from services.contracts.search import Source
from services.core.outcome import Ending, Outcome
from services.runtime.instruments import Counter, CounterChild, Histogram, HistogramAggregate, HistogramChild
from services.runtime.telemetry import SECONDS_BUCKETS

CUTS = ("retrieval", "context", "max_tokens")
MIN_PREDICTED_S = 0.001
RATIO_BUCKETS = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
RETRY_REASONS = ("refused", "failed", "unreachable")


class _OfTenant(NamedTuple):
    """The cached series of one tenant: a lookup costs more than a count."""

    admitted: CounterChild
    degraded: CounterChild
    early_retries: CounterChild
    served_cost: CounterChild
    queue_wait: HistogramChild
    first_token: HistogramChild
    ends: dict[Outcome, tuple[CounterChild, HistogramChild]]


class Sums:
    """The counters summed over all tenants: frames cannot add up 10,000 tenants five times a second."""

    __slots__ = ("admitted", "degraded", "outcomes", "served_tokens", "wasted_s")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.admitted = 0
        self.degraded = 0
        self.served_tokens = 0.0
        self.wasted_s = 0.0


class RouterMetrics:
    """The router's counters and histograms. `tenant` labels come from a closed set (`tenancy/tenants.py`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sums = Sums()
        self._requests = Counter("weir_requests", "Requests, by outcome.", ["tenant", "outcome"], registry=registry)
        self._seconds = Histogram(
            "weir_request_seconds", "Time from arrival to the end of the answer, by outcome.",
            ["tenant", "outcome"], buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._first_token = Histogram(
            "weir_time_to_first_token_seconds", "Time from arrival to the first output of a streamed answer.",
            ["tenant"], buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._queue_wait = Histogram(
            "weir_queue_wait_seconds", "Queue wait of requests that started.",
            ["tenant"], buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._predicted = Histogram(
            "weir_predicted_wait_seconds", "Queue wait predicted at admission, of requests that started.",
            buckets=SECONDS_BUCKETS, registry=registry,
        ).labels()  # fmt: skip
        self._prediction_ratio = Histogram(
            "weir_wait_prediction_ratio", "Ratio of actual to predicted queue wait, where at least 1 ms was predicted.",
            buckets=RATIO_BUCKETS, registry=registry,
        ).labels()  # fmt: skip
        self._admission = Counter("weir_admission", "Admission decisions.", ["tenant", "decision"], registry=registry)
        self._degradation = Counter(
            "weir_degradation", "Degraded answers, by what was cut.", ["reason"], registry=registry
        )
        self._retries = Counter(
            "weir_retries", "Retries, by the failure of the first attempt.", ["reason"], registry=registry
        )
        self._early_retries = Counter(
            "weir_early_retries", "Refused requests that came back before their retry hint.", ["tenant"],
            registry=registry,
        )  # fmt: skip
        self._served_cost = Counter(
            "weir_served_cost", "Cost of served requests, in token-equivalents.", ["tenant"], registry=registry
        )
        self._wasted = Counter(
            "weir_wasted_seconds", "Worker time spent on requests that were not served.", ["reason"], registry=registry
        )
        self._retrieval = Histogram(
            "weir_retrieval_seconds", "Retrieval time of a request, measured by the router.",
            ["source"], buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        HistogramAggregate(
            "gen_ai_server_request_duration_seconds", "OpenTelemetry's name for the duration of served requests.",
            self._seconds, Outcome.SERVED, registry=registry,
        )  # fmt: skip
        HistogramAggregate(
            "gen_ai_server_time_to_first_token_seconds", "OpenTelemetry's name for the time to the first token.",
            self._first_token, registry=registry,
        )  # fmt: skip
        self._refusals: dict[tuple[str, Outcome], CounterChild] = {}
        self._tenants: dict[str, _OfTenant] = {}
        for reason in CUTS:
            self._degradation.labels(reason)
        for reason in RETRY_REASONS:
            self._retries.labels(reason)
        for source in get_args(Source):
            self._retrieval.labels(source)
        for outcome in Outcome:
            if outcome.ending is Ending.FAILED:
                self._wasted.labels(outcome)

    def expect(self, tenant: str) -> None:
        """Create a tenant's series at zero, since Prometheus sees no increase in a series that starts above it."""
        for outcome in Outcome:
            self._requests.labels(tenant, outcome)
            if outcome.ending is Ending.REJECTED:
                self._admission.labels(tenant, outcome)
        self._seconds.labels(tenant, Outcome.SERVED)
        if tenant not in self._tenants:
            self._meet(tenant)

    def admitted(self, tenant: str, level: int) -> None:
        """A request was admitted; above level 0, degraded."""
        series = self._tenants.get(tenant) or self._meet(tenant)
        if level:
            self.sums.degraded += 1
            series.degraded.value += 1.0
        else:
            self.sums.admitted += 1
            series.admitted.value += 1.0

    def started(self, tenant: str, waited_s: float, predicted_s: float) -> None:
        (self._tenants.get(tenant) or self._meet(tenant)).queue_wait.observe(waited_s)
        self._predicted.observe(predicted_s)
        if predicted_s >= MIN_PREDICTED_S:
            self._prediction_ratio.observe(waited_s / predicted_s)

    def refused(self, tenant: str, outcome: Outcome) -> None:
        key = (tenant, outcome)
        child = self._refusals.get(key)
        if child is None:
            child = self._refusals[key] = self._admission.labels(tenant, outcome)
        child.value += 1.0

    def early_retry(self, tenant: str) -> None:
        """A refused request came back before its hint, and its refusal was repeated."""
        (self._tenants.get(tenant) or self._meet(tenant)).early_retries.inc()

    def ended(self, tenant: str, outcome: Outcome, seconds: float) -> None:
        """A request ended. Called exactly once per request."""
        series = self._tenants.get(tenant) or self._meet(tenant)
        count, spread = series.ends.get(outcome) or self._first_end(tenant, outcome, series)
        count.value += 1.0
        spread.observe(seconds)
        self.sums.outcomes[outcome] += 1

    def served(self, tenant: str, cost_tokens: float) -> None:
        self.sums.served_tokens += cost_tokens
        (self._tenants.get(tenant) or self._meet(tenant)).served_cost.value += cost_tokens

    def first_token(self, tenant: str, seconds: float) -> None:
        (self._tenants.get(tenant) or self._meet(tenant)).first_token.observe(seconds)

    def degraded(self, reasons: Iterable[str]) -> None:
        """Something was cut from an answer, once per reason."""
        for reason in reasons:
            self._degradation.labels(reason).inc()

    def retry(self, reason: str) -> None:
        self._retries.labels(reason).inc()

    def wasted(self, outcome: Outcome, seconds: float) -> None:
        """A worker's slot was held without a served answer."""
        self.sums.wasted_s += seconds
        self._wasted.labels(outcome).inc(seconds)

    def retrieved(self, source: str, seconds: float) -> None:
        self._retrieval.labels(source).observe(seconds)

    def _meet(self, tenant: str) -> _OfTenant:
        series = self._tenants[tenant] = _OfTenant(
            self._admission.labels(tenant, "admit"),
            self._admission.labels(tenant, "degrade"),
            self._early_retries.labels(tenant),
            self._served_cost.labels(tenant),
            self._queue_wait.labels(tenant),
            self._first_token.labels(tenant),
            {},
        )
        return series

    def _first_end(self, tenant: str, outcome: Outcome, series: _OfTenant) -> tuple[CounterChild, HistogramChild]:
        self.expect(tenant)
        found = series.ends[outcome] = (self._requests.labels(tenant, outcome), self._seconds.labels(tenant, outcome))
        return found
