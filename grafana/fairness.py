"""Fairness: who gets what, who waits, who is refused. Everything by tenant."""

from __future__ import annotations

from grafana.overview import BROKEN, FRONT, LET_IN, ROUTER, SERVED, TENANT, TURNED_AWAY
from grafana.panels import GREEN, RED, YELLOW, Choice, Dashboard, Panel, Query, Row
from grafana.promql import quantile, rate, share, share_of_all

WORK = rate("weir_served_cost_total", ROUTER, "tenant")
ALL_WORK = rate("weir_served_cost_total", ROUTER)
# Only those who want more than they get can be treated unfairly: a line that does not end says so.
WANT_MORE = f"(sum by (tenant) (min_over_time(weir_queue_depth{{{ROUTER}}}[$__rate_interval])) > 0)"
CONTENDED = f"({WORK} and {WANT_MORE})"
EVENNESS = f"sum ({CONTENDED}) ^ 2 / (count ({CONTENDED}) * sum ({CONTENDED} ^ 2))"
ASKED = rate("weir_admission_total", ROUTER, "tenant")
REFUSED = rate("weir_admission_total", f"{ROUTER}, {TURNED_AWAY}", "tenant")
CLASS = Choice("class", "Class", 'label_values(weir_degradation_level{job="router"}, class)')

NOW = Row(
    "Now",
    (
        Panel(
            "How many tenants ask?",
            "Tenants with at least one admission decision in the last moments.",
            "short",
            (Query(f"count ({ASKED} > 0) or vector(0)", "tenants"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "How many tenants are queueing?",
            "Tenants whose queue was never empty in the last moments. Where there is none, every tenant gets what it "
            "requests.",
            "short",
            (Query(f"count ({WANT_MORE}) or vector(0)", "waiting"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "How even are their shares?",
            "Jain's index of the work done for tenants whose queue was never empty: 1 when all get the "
            "same, 1/n when one of n gets everything. With unequal weights the fair value is below 1.",
            "none",
            (Query(EVENNESS, "evenness"),),
            kind="stat",
            width=4,
            most=1,
            thresholds=((0, RED), (0.7, YELLOW), (0.9, GREEN)),
        ),
        Panel(
            "How much does the largest get?",
            "The share of all work that the best served tenant has. Alone it may have all.",
            "percentunit",
            (Query(f"max ({share_of_all(WORK, ALL_WORK, 'tenant')})", "largest share"),),
            kind="stat",
            width=4,
            most=1,
        ),
        Panel(
            "How many requests wait?",
            "Queued requests of the chosen tenants. MAX_QUEUE_SIZE bounds them all, TENANT_QUEUE_SIZE each.",
            "short",
            (Query(f"sum (weir_queue_depth{{{ROUTER}}})", "waiting"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "What share of requests is rejected?",
            "Share of admission decisions that were rejections, over the chosen tenants.",
            "percentunit",
            (
                Query(
                    "1 - "
                    + share(rate("weir_admission_total", f"{ROUTER}, {LET_IN}"), rate("weir_admission_total", ROUTER)),
                    "refused",
                ),
            ),
            kind="stat",
            width=4,
            most=1,
        ),
    ),
)

SHARES = Row(
    "Who gets what?",
    (
        Panel(
            "Who has which share of the work?",
            "Work done in served answers, by tenant, in token-equivalents: prompts and answers weighed by what they "
            "cost. Tenants with a queue should hold shares by weight; a tenant that requests less gets all of it.",
            "percentunit",
            (Query(share_of_all(WORK, ALL_WORK, "tenant"), "{{tenant}}"),),
            stacked=True,
            most=1,
        ),
        Panel(
            "How much work is done for each?",
            "The same, as work per second. The curve of a light tenant stays level when a heavy one arrives.",
            "short",
            (Query(WORK, "{{tenant}}"),),
        ),
        Panel(
            "How even are the shares of waiting tenants?",
            "Jain's index over time. It dips while a returning tenant catches up, and recovers.",
            "none",
            (Query(EVENNESS, "evenness"),),
            most=1,
        ),
    ),
)

WAITING = Row(
    "Who waits, and how long?",
    (
        Panel(
            "Whose requests wait?",
            "Requests in each tenant's own queue. A queue that is always full belongs to a tenant above its share; "
            "that of others stays short beside it.",
            "short",
            (Query(f"sum by (tenant) (weir_queue_depth{{{ROUTER}}})", "{{tenant}}"),),
            stacked=True,
        ),
        Panel(
            "How much work waits?",
            "The estimated cost of queued requests, in token-equivalents. Few requests can be much work.",
            "short",
            (Query(f"sum by (tenant) (weir_queue_cost_tokens{{{ROUTER}}})", "{{tenant}}"),),
            stacked=True,
        ),
        Panel(
            "How long is the queue wait?",
            "95 of 100 requests that started had waited at most this long, by tenant.",
            "s",
            (Query(quantile(0.95, "weir_queue_wait_seconds", ROUTER, "tenant"), "{{tenant}}"),),
        ),
    ),
)

REFUSALS = Row(
    "Who is refused, and why?",
    (
        Panel(
            "What share of each tenant's requests is refused?",
            "Rejections at admission by tenant. A tenant that requests ten times its share is rejected nine times of "
            "ten; one below its share hardly ever.",
            "percentunit",
            (Query(share(REFUSED, ASKED), "{{tenant}}"),),
            most=1,
        ),
        Panel(
            "Why are they refused?",
            "Rejections at admission per second, by tenant and decision. tenant_queue_full and yield: too much at "
            "once; rate_limit_exceeded: its rate; deadline_infeasible: the wait is too long for its deadlines.",
            "reqps",
            (
                Query(
                    rate("weir_admission_total", f"{ROUTER}, {TURNED_AWAY}", "tenant, decision") + " > 0",
                    "{{tenant}}: {{decision}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Whose requests are degraded?",
            "Requests per second that were admitted at a degradation level above 0, by tenant.",
            "reqps",
            (Query(rate("weir_admission_total", f'{ROUTER}, decision="degrade"', "tenant"), "{{tenant}}"),),
            stacked=True,
        ),
    ),
)

ALIKE = Row(
    "Are all tenants served equally well?",
    (
        Panel(
            "How long do answers take, by tenant?",
            "95 of 100 served requests took at most this long. It depends on the requests of each; compare a tenant "
            "with itself.",
            "s",
            (Query(quantile(0.95, "weir_request_seconds", SERVED, "tenant"), "{{tenant}}"),),
        ),
        Panel(
            "When does the first token come, by tenant?",
            "95 of 100 streams began at most this long after their request arrived.",
            "s",
            (Query(quantile(0.95, "weir_time_to_first_token_seconds", ROUTER, "tenant"), "{{tenant}}"),),
        ),
        Panel(
            "Whose promises are broken?",
            "Admitted requests that were not served in time, per second, by tenant. Spread evenly: the platform is "
            "the cause. One tenant alone: check its lengths and deadlines.",
            "reqps",
            (Query(rate("weir_requests_total", f'{ROUTER}, outcome=~"{BROKEN}"', "tenant"), "{{tenant}}"),),
            stacked=True,
        ),
        Panel(
            "At which level is each class?",
            "0 is full quality. The lowest class is degraded first, and the highest last.",
            "none",
            (Query(f'max by (class) (weir_degradation_level{{{FRONT}, class=~"$class"}})', "{{class}}"),),
            steps=True,
            width=24,
        ),
    ),
)

FAIRNESS = Dashboard(
    "weir-fairness",
    "Weir: fairness",
    "Who gets what, who waits, and who is refused?",
    (NOW, SHARES, WAITING, REFUSALS, ALIKE),
    (TENANT, CLASS),
)
