"""The scenarios: what each asks, and how it is played (`plays`). Every policy meets the same people."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.cluster.stand import Shape
from loadtests.runs.matrix import plays
from loadtests.runs.matrix.plays import DEADLINE_MS, Play
from loadtests.runs.peers.gateways import WAIT_IN_SERVICES, Deadlines


@dataclass(frozen=True, slots=True)
class Scenario:
    """`seconds`: of all its loads together. `tightest_ms`: what HAProxy is tuned for; `longest_ms`: the promise."""

    name: str
    title: str
    question: str
    about: str
    watch: str
    seconds: float
    play: Play
    tightest_ms: float = DEADLINE_MS
    longest_ms: float = DEADLINE_MS
    size: int = 1
    """Usual answers in one of those who have the tightest deadline."""
    hurts: bool = False
    """Workers are hurt on purpose: failures are no fault of the gateway's alone."""

    def deadlines(self, shape: Shape) -> Deadlines:
        """As HAProxy is tuned for them: what it is told leaves time for a usual answer, so a longer one costs more."""
        longer_ms = WAIT_IN_SERVICES * (self.size - 1) * shape.service_s * 1000
        return Deadlines(self.longest_ms, self.tightest_ms - longer_ms)


SCENARIOS = (
    Scenario(
        "baseline", "Baseline", "What does it cost while there is room?",
        "Three equal tenants ask for three quarters of the capacity.",
        "Everything is answered on time; compare the percentiles, and the gateway's processor time.",
        plays.STEADY_S, plays.steady("baseline", plays.BASE),
    ),
    Scenario(
        "at_capacity", "At capacity", "What does caution cost?",
        "The same three ask for exactly the capacity. Arrivals bunch, so for moments it is more.",
        "Who refuses here although all could have been answered a little later has lost something.",
        plays.STEADY_S, plays.steady("at_capacity", 1.0),
    ),
    Scenario(
        "overload_2x", "Overload, 2x", "Does work that nobody gets displace work that somebody would?",
        "The same at twice the capacity.", "Goodput should stay at 1: half is answered, half is refused, at once.",
        plays.STEADY_S, plays.steady("overload_2x", 2.0),
    ),
    Scenario(
        "overload_5x", "Overload, 5x", "The same, further.", "The same at five times the capacity.",
        "Refusals outnumber answers four to one and must not cost the answers anything.",
        plays.STEADY_S, plays.steady("overload_5x", 5.0),
    ),
    Scenario(
        "burst", "Burst", "Are those who are let in served in time, and is it over when the burst is?",
        "Three quarters of the capacity, then ten times the capacity for twenty seconds, then three quarters again.",
        "The line of answers on time stays up during the burst, and the backlog is gone with it. The row "
        "*overload, 10x* is its middle, counted by itself.",
        plays.BURST_S, plays.burst,
    ),
    Scenario(
        "noisy_neighbour", "Noisy neighbour", "What does a tenant under its share notice of one far over it?",
        "`light` asks for a fifth of the capacity, alone at first; then `heavy` asks for fifty times the capacity "
        "beside it. Answers take 400 ms, deadlines are 2 s.",
        "light's share on time, and its p95 beside what it had alone.",
        plays.NEIGHBOUR_S, plays.noisy_neighbour, 2 * DEADLINE_MS, 2 * DEADLINE_MS, plays.LIGHT_SIZE,
    ),
    Scenario(
        "slow_worker", "Slow worker", "Who notices that one of two workers has become slow?",
        "Half of the capacity. For seven seconds one of the two workers takes eight times as long, and tells nobody.",
        "Answers on time, and how many were let in and not answered.",
        plays.SLOW_S, plays.slow_worker, hurts=True,
    ),
    Scenario(
        "retry_storm", "Retry storm", "Does the overload end when its cause does?",
        "Three quarters of the capacity. For twenty seconds every worker stands nearly still, and whoever is not "
        "answered asks again at once, three times at most. Then the workers are well.",
        "The share on time after the outage, and how often workers were asked for each request.",
        plays.STORM_S, plays.retry_storm, hurts=True,
    ),
    Scenario(
        "recovery", "Recovery", "How long does a short outage last?",
        "Three quarters of the capacity. Every worker stands nearly still for four seconds. Nobody asks again.",
        "Seconds from the end of the outage until nine tenths are on time again, and stay so.",
        plays.HALT_S, plays.recovery, hurts=True,
    ),
    Scenario(
        "degradation", "Degradation", "What do smaller answers buy?",
        "Three tenants whose answers may be cut ask for three times the capacity, in answers of 320 ms; deadlines are "
        "2 s.",
        "Answers on time a second. Weir's are shorter than asked, and say so; the others' are whole.",
        plays.DEGRADE_S, plays.degradation, 2 * DEADLINE_MS, 2 * DEADLINE_MS, plays.LONG,
    ),
    Scenario(
        "mixed_deadlines", "Mixed deadlines", "Does who is in a hurry get there beside who is not?",
        "`tight` wants 0.3 of the capacity within 300 ms each, `loose` three times the capacity within 3 s.",
        "tight's share on time.",
        plays.MIXED_S, plays.mixed_deadlines, plays.TIGHT_MS, plays.LOOSE_MS,
    ),
    Scenario(
        "mixed_sizes", "Mixed sizes", "Whom does fairness by work cost something?",
        "`small` asks for three times the capacity in answers of 80 ms, `big` for the capacity in answers of 400 ms.",
        "Weir shares by tokens, so `big` gets its half; counted in answers, that is fewer than a queue in order of "
        "arrival gives, which serves whoever asks most often.",
        plays.SIZES_S, plays.mixed_sizes, DEADLINE_MS, 2 * DEADLINE_MS,
    ),
    Scenario(
        "bursty", "Bursty, as in traces", "And with arrivals as bunched as real ones?",
        "Three tenants ask for 0.8 of the capacity on the mean. Gaps between arrivals are Gamma with a coefficient of "
        "variation of 4, and lengths of answers exponential, in the manner of BurstGPT (arXiv 2401.17644) and ServeGen "
        "(arXiv 2505.09999).",
        "Overload comes and goes within seconds; a queue helps here, and a door that refuses too early costs.",
        plays.BURSTY_S, plays.bursty,
    ),
)  # fmt: skip
