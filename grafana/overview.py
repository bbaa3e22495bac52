"""The overview: four questions, in the order in which one asks them.

Every query names the job it reads, since a name like `weir_worker_inflight` is told from two sides: by the worker, and
by the router that holds places there.
"""

from __future__ import annotations

from grafana.panels import DOWN_OR_UP, GREEN, RED, YELLOW, Choice, Dashboard, Panel, Query, Row
from grafana.promql import quantile, quantiles, rate, share, share_of_all

FRONT = 'job="router"'
ROUTER = f'{FRONT}, tenant=~"$tenant"'
SERVED = f'{ROUTER}, outcome="served"'
BROKEN = "deadline_expired|deadline_exceeded|upstream_failed|internal_error"
LET_IN = 'decision=~"admit|degrade"'
TURNED_AWAY = 'decision!~"admit|degrade"'
DECISIONS = rate("weir_admission_total", ROUTER)
PROMISES = rate("weir_requests_total", f'{ROUTER}, outcome=~"served|{BROKEN}"')
HELD = 'sum (weir_worker_inflight{job="router"})'
SLOTS = (  # each of several routers tells of all slots of a worker
    'sum (max by (worker) (weir_worker_slots{job="router"}'
    ' and on (instance, worker) weir_worker_healthy{job="router"} == 1))'
)
WASTED = rate("weir_wasted_seconds_total", 'job="worker"')
USED = 'sum (avg_over_time(weir_worker_inflight{job="worker"}[$__rate_interval]))'
SERVICES = 'job=~"router|retrieval|worker|governor|storm"'
TENANT = Choice("tenant", "Tenant", 'label_values(weir_requests_total{job="router"}, tenant)')

NOW = Row(
    "Now",
    (
        Panel(
            "How many requests arrive?",
            "Requests that ended in the last moments, per second, however they ended. A refusal ends at once.",
            "reqps",
            (Query(rate("weir_requests_total", ROUTER), "requests"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Are promises kept?",
            "Of the admitted requests whose client stayed, the share that was answered in time. Near 100 % at any "
            "load: a request that would be late should be rejected at admission.",
            "percentunit",
            (Query(share(rate("weir_requests_total", SERVED), PROMISES), "kept"),),
            kind="stat",
            width=4,
            most=1,
            thresholds=((0, RED), (0.95, YELLOW), (0.99, GREEN)),
        ),
        Panel(
            "What share is refused?",
            "Share of admission decisions that were rejections. Healthy under overload: look at the promises first.",
            "percentunit",
            (Query(f"1 - {share(rate('weir_admission_total', f'{ROUTER}, {LET_IN}'), DECISIONS)}", "refused"),),
            kind="stat",
            width=4,
            most=1,
            thresholds=((0, GREEN), (0.05, YELLOW), (0.5, RED)),
            more="weir-fairness",
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
            "How full are the workers?",
            "Places that the router holds at workers, as a share of the slots of the healthy ones. At 100 % requests"
            " are queued: the workers are full, which is not a fault.",
            "percentunit",
            (Query(share(HELD, SLOTS), "held"),),
            kind="stat",
            width=4,
            thresholds=((0, GREEN), (0.95, YELLOW)),
            more="weir-workers",
        ),
        Panel(
            "How fast is the error budget used?",
            "The objective is that 99 % of the promises are kept over 30 days. A burn rate of 1 uses up exactly that"
            " budget; at 14.4 it is used up in two days, and an alert fires. Over the last hour.",
            "none",
            (Query('(job:weir_promises_broken:ratio_rate1h{job="router"} >= 0) / 0.01', "burn rate"),),
            kind="stat",
            width=4,
            thresholds=((0, GREEN), (1, YELLOW), (14.4, RED)),
        ),
    ),
)

ON_TIME = Row(
    "Are admitted requests on time?",
    (
        Panel(
            "How long do served requests take?",
            "From arrival to the end of the answer. Under a burst these curves should stay level, because admission "
            "rejects the requests that would raise them.",
            "s",
            quantiles("weir_request_seconds", SERVED),
        ),
        Panel(
            "When does the first token come?",
            "From arrival to the first output of a worker, for streamed answers: the wait that users notice.",
            "s",
            quantiles("weir_time_to_first_token_seconds", ROUTER),
        ),
        Panel(
            "Which promises are broken, and how?",
            "Admitted requests that were not served, per second. deadline_expired: the deadline passed in the queue, "
            "which cost nothing. deadline_exceeded: it passed at a worker, which is wasted work. The rest are faults.",
            "reqps",
            (Query(rate("weir_requests_total", f'{ROUTER}, outcome=~"{BROKEN}"', "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Is the queue wait as predicted?",
            "The queue wait, and the wait predicted at admission, of requests that started. The curves should lie "
            "together. Actual above predicted: too many are admitted.",
            "s",
            (
                Query(quantile(0.95, "weir_queue_wait_seconds", ROUTER), "actual p95"),
                Query(quantile(0.95, "weir_predicted_wait_seconds", FRONT), "predicted p95"),
            ),
        ),
        Panel(
            "How much runs at once, and how much may?",
            "Requests dispatched to workers, against the slots that healthy workers have and the cap MAX_INFLIGHT.",
            "short",
            (
                Query('sum (weir_inflight{job="router"})', "in flight"),
                Query(SLOTS, "slots", bound=True),
                Query('sum (weir_inflight_cap{job="router"})', "cap", bound=True),
            ),
        ),
        Panel(
            "Is the error budget being used up?",
            "Share of promises broken, over windows from five minutes to three days, against the budget. Only a "
            "short window far above: it has just begun. All above: it has lasted for days.",
            "percentunit",
            (
                *(
                    Query(f'job:weir_promises_broken:ratio_rate{window}{{job="router"}}', window)
                    for window in ("5m", "1h", "6h", "3d")
                ),
                Query("vector(0.01)", "budget", bound=True),
            ),
        ),
    ),
)

REFUSED = Row(
    "Who is being refused, and why?",
    (
        Panel(
            "How do requests end?",
            "Requests per second by outcome. The outcomes are those of the refusal table in the API's documentation.",
            "reqps",
            (Query(rate("weir_requests_total", ROUTER, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "What share is rejected at admission, and why?",
            "Refusals at admission by reason, as a share of all decisions. These never held a place at a worker and "
            "cost only their response.",
            "percentunit",
            (
                Query(
                    share_of_all(
                        rate("weir_admission_total", f"{ROUTER}, {TURNED_AWAY}", "decision"), DECISIONS, "decision"
                    ),
                    "{{decision}}",
                ),
            ),
            stacked=True,
            most=1,
        ),
        Panel(
            "Whose requests are refused?",
            "Refusals at admission per second, by tenant. It should be the tenants that exceed their share.",
            "reqps",
            (Query(rate("weir_admission_total", f"{ROUTER}, {TURNED_AWAY}", "tenant"), "{{tenant}}"),),
            stacked=True,
            more="weir-fairness",
        ),
    ),
)

WASTE = Row(
    "Is work wasted?",
    (
        Panel(
            "How much slot time is wasted, and why?",
            "Slots that were busy with answers that reached no client: 1 is one slot, all the time. It counts when "
            "such an answer ends.",
            "short",
            (Query(rate("weir_wasted_seconds_total", 'job="worker"', "reason"), "{{reason}}"),),
            stacked=True,
            more="weir-workers",
        ),
        Panel(
            "What share of the slot time is wasted?",
            "The same, of the slot time that was used. Under overload it should stay below a few percent, because "
            "admission rejects early.",
            "percentunit",
            (Query(f"clamp_max({share(WASTED, USED)}, 1)", "wasted"),),
            most=1,
        ),
        Panel(
            "How many need a second attempt?",
            "Requests per second that were sent to a worker a second time, by why the first attempt failed. "
            "RETRY_SHARE bounds them.",
            "reqps",
            (Query(rate("weir_retries_total", FRONT, "reason"), "{{reason}}"),),
            stacked=True,
        ),
    ),
)

DEGRADED = Row(
    "What is degraded?",
    (
        Panel(
            "What is cut from answers?",
            "Answers per second that lack something, by what was cut. Each names it in x-weir-degraded.",
            "reqps",
            (Query(rate("weir_degradation_total", FRONT, "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "At which level is each class?",
            "The level of degradation by class: 0 is full quality. It rises while the load of a class exceeds its "
            "capacity, and falls by itself.",
            "none",
            (Query('max by (class) (weir_degradation_level{job="router"})', "{{class}}"),),
            steps=True,
        ),
        Panel(
            "Is a mechanism switched off?",
            "1 while admission, fairness and cancellation are on. Off is for experiments; an alert reports it.",
            "none",
            (Query('min by (mechanism) (weir_mechanism_enabled{job="router"})', "{{mechanism}}"),),
            kind="state-timeline",
            values=((0, "off", RED), (1, "on", GREEN)),
        ),
        Panel(
            "Which workers are healthy for the router?",
            "A worker is up while it answers the router's probes and is not ejected. Without any, all is rejected.",
            "none",
            (Query('min by (worker) (weir_worker_healthy{job="router"})', "{{worker}}"),),
            kind="state-timeline",
            values=DOWN_OR_UP,
            more="weir-workers",
        ),
        Panel(
            "Which stores answer?",
            "PostgreSQL and Redis, as retrieval finds them. Without them answers continue, degraded.",
            "none",
            (Query('min by (dependency) (weir_dependency_up{job="retrieval"})', "{{dependency}}"),),
            kind="state-timeline",
            values=DOWN_OR_UP,
            more="weir-retrieval",
        ),
        Panel(
            "Which alerts are pending or firing?",
            "Each alert has a section in docs/operations/alerts.md: what it means, how to look, what to do.",
            "none",
            (
                Query(
                    '2 * max by (alertname) (ALERTS{alertstate="firing"})'
                    ' or max by (alertname) (ALERTS{alertstate="pending"})',
                    "{{alertname}}",
                ),
            ),
            kind="state-timeline",
            values=((1, "pending", YELLOW), (2, "firing", RED)),
        ),
    ),
)

PROCESSES = Row(
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
            "Cores used by each service. A router is one event loop: near 1 it is at its limit, and an alert says so.",
            "short",
            (Query(rate("process_cpu_seconds_total", SERVICES, "instance"), "{{instance}}"),),
        ),
        Panel(
            "Does Prometheus reach them?",
            "Up while the last scrape succeeded. Requests do not depend on it.",
            "none",
            (Query(f"up{{{SERVICES}}}", "{{instance}}"),),
            kind="state-timeline",
            values=DOWN_OR_UP,
        ),
    ),
)

OVERVIEW = Dashboard(
    "weir-overview",
    "Weir: overview",
    "Are admitted requests on time? Who is being refused, and why? Is work wasted? What is degraded?",
    (NOW, ON_TIME, REFUSED, WASTE, DEGRADED, PROCESSES),
    (TENANT,),
)
