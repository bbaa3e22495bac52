"""The governor: is the bound held, how do jobs end, and how often must clients come back?"""

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
            "Jobs that run, as a share of those that may. At 100 % the next client is told to come back.",
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
            "How many clients are to come back?",
            "Clients that were told to and are not back yet. The hint grows with them.",
            "short",
            (Query(f"sum (weir_governor_deferred_clients{{{HERE}}})", "clients"),),
            kind="stat",
            width=6,
        ),
        Panel(
            "What share of the jobs is lost?",
            "Jobs that failed or came late, of those that ended by themselves. Jobs that a full router refused come "
            "back, and are not lost.",
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
            "It never passes the cap: that is what the governor is for.",
            "short",
            (
                Query(f"sum (heptamini_backend_inflight{{{HERE}}})", "running"),
                Query(f"sum (heptamini_backend_cap{{{HERE}}})", "cap", bound=True),
            ),
        ),
        Panel(
            "How do jobs end?",
            "Jobs per second by outcome. refused: by a full router, they come back; cancelled: the client has left; "
            "failed and late are lost.",
            "short",
            (Query(rate("weir_governor_jobs_total", HERE, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "How long do jobs keep their slot?",
            "From the start of a job to the release of its slot. The hint is made from the mean of it.",
            "s",
            quantiles("weir_governor_job_seconds", HERE),
        ),
    ),
)

YIELDS = Row(
    "How often must clients come back?",
    (
        Panel(
            "How many are told to come back?",
            "Yields per second, beside the jobs that were started. Many yields for each job: too few slots, or "
            "clients that do not wait as long as they were told.",
            "short",
            (
                Query(rate("heptamini_yielded_total", HERE), "told to come back"),
                Query(rate("heptamini_executed_total", HERE), "started"),
            ),
        ),
        Panel(
            "How many connections are held, and refused?",
            "Connections held now, and per second those beyond the most that are held, and those cut off because "
            "their peer did not read.",
            "short",
            (
                Query(f"sum (weir_governor_connections{{{HERE}}})", "held"),
                Query(rate("weir_governor_connections_refused_total", HERE), "refused/s"),
                Query(rate("weir_governor_slow_readers_total", HERE), "cut off/s"),
            ),
        ),
        Panel(
            "How much memory is promised?",
            "Bytes that payloads and half lines have reserved. GOVERNOR_TOTAL_BYTES bounds it; beyond it a manifest "
            "is told to come back.",
            "bytes",
            (Query(f"sum (weir_governor_held_bytes{{{HERE}}})", "reserved"),),
        ),
    ),
)

GOVERNOR = Dashboard(
    "weir-governor",
    "Weir: governor",
    "Is the bound held, how do jobs end, and how often must clients come back?",
    (NOW, BOUND, YIELDS),
)
