"""The governor: is the bound held, how do jobs end, and how often must clients retry?"""

from __future__ import annotations

from grafana.panels import GREEN, RED, YELLOW, Dashboard, Panel, Query, Row
from grafana.promql import quantiles, rate, share

HERE = 'job="governor"'
LOST = rate("weir_governor_jobs_total", f'{HERE}, outcome=~"failed|late"')
ENDED = rate("weir_governor_jobs_total", f'{HERE}, outcome=~"done|failed|late"')

NOW = Row(
    "Now",
    (
        Panel(
            "How full is it?",
            "Jobs that run, as a share of those that may. At 100 % the next client is told to retry later.",
            "percentunit",
            (
                Query(
                    share(f"sum (heptamini_backend_inflight{{{HERE}}})", f"sum (heptamini_backend_cap{{{HERE}}})"),
                    "in use",
                ),
            ),
            kind="stat",
            width=6,
            most=1,
        ),
        Panel(
            "How many jobs are started?",
            "Jobs per second that got a slot, as the original counts them.",
            "short",
            (Query(rate("heptamini_executed_total", HERE), "jobs/s"),),
            kind="stat",
            width=6,
        ),
        Panel(
            "How many clients are deferred?",
            "Clients that were told to retry later and have not yet returned. The retry hint grows with their number.",
            "short",
            (Query(f"sum (weir_governor_deferred_clients{{{HERE}}})", "clients"),),
            kind="stat",
            width=6,
        ),
        Panel(
            "What share of the jobs is lost?",
            "Jobs that failed or came late, of those that ended by themselves. Jobs that a full router rejected are "
            "retried, and are not lost.",
            "percentunit",
            (Query(share(LOST, ENDED), "lost"),),
            kind="stat",
            width=6,
            most=1,
            thresholds=((0, GREEN), (0.01, YELLOW), (0.1, RED)),
        ),
    ),
)

BOUND = Row(
    "Is the bound held?",
    (
        Panel(
            "How many jobs run, and how many may?",
            "It never exceeds the cap: the governor enforces it.",
            "short",
            (
                Query(f"sum (heptamini_backend_inflight{{{HERE}}})", "running"),
                Query(f"sum (heptamini_backend_cap{{{HERE}}})", "cap", bound=True),
            ),
        ),
        Panel(
            "How do jobs end?",
            "Jobs per second by outcome. refused: by a full router, the client retries; cancelled: the client left; "
            "failed and late are lost.",
            "short",
            (Query(rate("weir_governor_jobs_total", HERE, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "How long do jobs keep their slot?",
            "From the start of a job to the release of its slot. The retry hint is computed from its mean.",
            "s",
            quantiles("weir_governor_job_seconds", HERE),
        ),
    ),
)

YIELDS = Row(
    "How often must clients retry?",
    (
        Panel(
            "How many are told to retry later?",
            "Yields per second, beside the jobs that were started. Many yields for each job: too few slots, or "
            "clients that do not obey the retry hint.",
            "short",
            (
                Query(rate("heptamini_yielded_total", HERE), "told to retry"),
                Query(rate("heptamini_executed_total", HERE), "started"),
            ),
        ),
        Panel(
            "How many connections are held, and refused?",
            "Open connections, and per second those rejected because too many were open, and those closed because "
            "their peer did not read.",
            "short",
            (
                Query(f"sum (weir_governor_connections{{{HERE}}})", "held"),
                Query(rate("weir_governor_connections_refused_total", HERE), "refused/s"),
                Query(rate("weir_governor_slow_readers_total", HERE), "cut off/s"),
            ),
        ),
        Panel(
            "How much memory is reserved?",
            "Bytes reserved by payloads and incomplete lines. GOVERNOR_TOTAL_BYTES bounds it; beyond it a client is "
            "told to retry later.",
            "bytes",
            (Query(f"sum (weir_governor_held_bytes{{{HERE}}})", "reserved"),),
        ),
    ),
)

GOVERNOR = Dashboard(
    "weir-governor",
    "Weir: governor",
    "Is the bound held, how do jobs end, and how often must clients retry?",
    (NOW, BOUND, YIELDS),
)
