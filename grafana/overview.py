"""The overview: the questions one asks first, in the order one asks them.

Every query names the job it reads, since a name like `weir_worker_inflight` is told from two sides: by the worker, and
by the router that holds places there.
"""

from __future__ import annotations

from grafana.panels import GREEN, RED, YELLOW, Panel, Query, Row
from grafana.promql import quantile, rate, share

FRONT = 'job="router"'
ROUTER = f'{FRONT}, tenant=~"$tenant"'
SERVED = f'{ROUTER}, outcome="served"'
ADMITTED = f'{ROUTER}, decision="admit"'
REFUSED = f'{ROUTER}, decision!="admit"'
DECISIONS = rate("weir_admission_total", ROUTER)
WORKER = 'job="worker"'
RETRIEVAL = 'job="retrieval"'
SERVICES = 'job=~"router|retrieval|worker"'


def quantiles(histogram: str, labels: str) -> tuple[Query, ...]:
    """The three that people quote."""
    return tuple(Query(quantile(q / 100, histogram, labels), f"p{q}") for q in (50, 95, 99))


OVERVIEW = (
    Row(
        "Now",
        (
            Panel(
                "How many requests arrive?",
                "Requests that ended in the last moments, per second, however they ended.",
                "reqps",
                (Query(rate("weir_requests_total", ROUTER), "requests"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "How many are served?",
                "Requests that got their whole answer, per second.",
                "reqps",
                (Query(rate("weir_requests_total", SERVED), "served"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "What share is refused?",
                "Share of decisions at the door that said no. Under overload that is healthy: look at latency next.",
                "percentunit",
                (Query(f"1 - {share(rate('weir_admission_total', ADMITTED), DECISIONS)}", "refused"),),
                kind="stat",
                width=4,
                most=1,
                thresholds=((0, GREEN), (0.05, YELLOW), (0.5, RED)),
            ),
            Panel(
                "How long does an answer take?",
                "95 of 100 served requests took at most this long, from arrival to the end of the answer.",
                "s",
                (Query(quantile(0.95, "weir_request_seconds", SERVED), "p95"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "How full is the router?",
                "Requests dispatched to workers, as a share of MAX_INFLIGHT. At 100 % the next one is refused.",
                "percentunit",
                (Query('weir_inflight{job="router"} / weir_inflight_cap{job="router"}', "in flight"),),
                kind="stat",
                width=4,
                most=1,
                thresholds=((0, GREEN), (0.7, YELLOW), (0.95, RED)),
            ),
            Panel(
                "How many workers are healthy?",
                "Workers that answered the router's last probe. With none, every request is refused with no_capacity.",
                "none",
                (Query('sum(weir_worker_healthy{job="router"})', "healthy"),),
                kind="stat",
                width=4,
                thresholds=((0, RED), (1, YELLOW), (2, GREEN)),
            ),
        ),
    ),
    Row(
        "Are admitted requests on time?",
        (
            Panel(
                "How long do served requests take?",
                "From arrival to the end of the answer. Under a burst these lines should stay level: what would have "
                "lifted them was refused at the door.",
                "s",
                quantiles("weir_request_seconds", SERVED),
            ),
            Panel(
                "When does the first token come?",
                "From arrival to the first output of a worker, streamed answers only: the wait that people feel.",
                "s",
                quantiles("weir_time_to_first_token_seconds", ROUTER),
            ),
            Panel(
                "How much runs at once, and how much may?",
                "Requests dispatched to workers, against the hard cap MAX_INFLIGHT and the slots workers announced. "
                "Above the slots, requests wait in a worker's own short queue.",
                "short",
                (
                    Query('weir_inflight{job="router"}', "in flight"),
                    Query('weir_inflight_cap{job="router"}', "cap"),
                    Query('sum(weir_worker_slots{job="router"})', "slots"),
                ),
            ),
        ),
    ),
    Row(
        "Who is refused, and why?",
        (
            Panel(
                "How do requests end?",
                "Requests per second by outcome. `yield` means full, try again then; the outcomes are those of the "
                "refusal table in the API's documentation.",
                "reqps",
                (Query(rate("weir_requests_total", ROUTER, "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "What share is refused at the door, and why?",
                "Refusals at admission by reason, as a share of all decisions. These never held a place and cost "
                "nothing but the answer.",
                "percentunit",
                (
                    Query(
                        share(
                            rate("weir_admission_total", REFUSED, "decision"),
                            DECISIONS,
                            matching="ignoring (decision) group_left ()",
                        ),
                        "{{decision}}",
                    ),
                ),
                stacked=True,
                most=1,
            ),
            Panel(
                "Whose requests are refused?",
                "Refusals at admission per second, by tenant.",
                "reqps",
                (Query(rate("weir_admission_total", REFUSED, "tenant"), "{{tenant}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Is work wasted, or degraded?",
        (
            Panel(
                "How much worker time is wasted?",
                "Seconds of slot time per second spent on answers nobody got, by reason. One means that one slot is "
                "busy for nothing.",
                "short",
                (Query(rate("weir_wasted_seconds_total", WORKER, "reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "What is cut from answers?",
                "Answers per second that lack something, by what was cut; and the degradation level, where 0 is full.",
                "short",
                (
                    Query(rate("weir_degradation_total", FRONT, "reason"), "{{reason}}"),
                    Query('max by (class) (weir_level{job="router"})', "{{class}}"),
                ),
            ),
            Panel(
                "How many need a second attempt?",
                "Requests per second sent to a worker a second time, by why the first attempt failed.",
                "reqps",
                (Query(rate("weir_retries_total", FRONT, "reason"), "{{reason}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Are the workers busy, and well?",
        (
            Panel(
                "How many slots are in use?",
                "Sequences running in each worker, against the slots it has.",
                "short",
                (
                    Query('weir_worker_inflight{job="worker"}', "{{instance}}"),
                    Query('weir_worker_slots{job="worker"}', "{{instance}} slots"),
                ),
            ),
            Panel(
                "How large are batches?",
                "Mean number of sequences that shared a step.",
                "short",
                (
                    Query(
                        share(
                            rate("weir_worker_batch_size_sum", WORKER, "instance"),
                            rate("weir_worker_batch_size_count", WORKER, "instance"),
                        ),
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "How long does a step take?",
                "95 of 100 engine steps took at most this long; a step yields one token for each running sequence.",
                "s",
                (Query(quantile(0.95, "weir_worker_step_seconds", WORKER, "instance"), "{{instance}}"),),
            ),
            Panel(
                "How many wait for a slot?",
                "Requests in each worker's own bounded queue. Those beyond its bound are refused.",
                "short",
                (Query('weir_worker_queue_depth{job="worker"}', "{{instance}}"),),
            ),
            Panel(
                "How many tokens are generated?",
                "Completion tokens per second, by worker.",
                "short",
                (Query(rate("weir_worker_completion_tokens_total", WORKER, "instance"), "{{instance}}"),),
                stacked=True,
            ),
            Panel(
                "Which workers does the router trust?",
                "1 while a worker answers the router's probes, 0 while it is left out.",
                "none",
                (Query('weir_worker_healthy{job="router"}', "{{worker}}"),),
                most=1,
            ),
        ),
    ),
    Row(
        "Does retrieval keep its budget?",
        (
            Panel(
                "Where do passages come from?",
                "Retrievals per second by source, as the router saw them: none means that retrieval was late or down.",
                "reqps",
                (Query(rate("weir_retrieval_seconds_count", FRONT, "source"), "{{source}}"),),
                stacked=True,
            ),
            Panel(
                "How long does retrieval take?",
                "95 of 100 retrievals took at most this long, by source. RETRIEVAL_BUDGET_MS bounds them all.",
                "s",
                (Query(quantile(0.95, "weir_retrieval_seconds", FRONT, "source"), "{{source}}"),),
            ),
            Panel(
                "How often does the cache hit?",
                "Share of look-ups that were answered, by cache.",
                "percentunit",
                (
                    Query(
                        share(
                            rate("weir_cache_total", f'{RETRIEVAL}, result="hit"', "cache"),
                            rate("weir_cache_total", RETRIEVAL, "cache"),
                        ),
                        "{{cache}}",
                    ),
                ),
                most=1,
            ),
        ),
    ),
    Row(
        "Are the processes well?",
        (
            Panel(
                "How much memory do they hold?",
                "Resident memory of each service. It should be flat under steady load.",
                "bytes",
                (Query(f"process_resident_memory_bytes{{{SERVICES}}}", "{{instance}}"),),
            ),
            Panel(
                "How much processor time do they take?",
                "Cores used by each service. A service runs one event loop: near 1 it is at its limit.",
                "short",
                (
                    Query(
                        rate("process_cpu_seconds_total", SERVICES, "instance"),
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "Does Prometheus reach them?",
                "1 while the last scrape of the service succeeded. Requests do not depend on it.",
                "none",
                (Query("up", "{{instance}}"),),
                most=1,
            ),
        ),
    ),
)
