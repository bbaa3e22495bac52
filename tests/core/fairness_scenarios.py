"""Who asks for what, and what each must get: shares with a margin, and waits where the wait is the point."""

from __future__ import annotations

from services.core.account import ClassSpec
from tests.core.scenario import Expect, Load, Scenario, always, between, exponential, fixed, known, mostly, times

TWO_CLASSES = (ClassSpec("gold", 3.0), ClassSpec("tin", 1.0))
A_FLOOR = (ClassSpec("gold", 99.0), ClassSpec("tin", 1.0, floor=0.1))


def pair(first: Load, second: Load, share: float = 0.5, margin: float = 0.01) -> dict[str, object]:
    """Two loads, and the first one's share."""
    expect = {first.group: Expect(share, margin), second.group: Expect(1 - share, margin)}
    return {"loads": (first, second), "expect": expect}


def busy(group: str, **more: object) -> Load:
    """A tenant that always has work in line."""
    return Load(group, backlog=5, **more)


SCENARIOS = (
    # ---- shares
    Scenario("two equal tenants get half each", **pair(busy("a"), busy("b"))),
    Scenario(
        "five equal tenants get a fifth each",
        tuple(busy(group) for group in "abcde"),
        {group: Expect(0.2) for group in "abcde"},
    ),
    Scenario("a weight of three gets three quarters", **pair(busy("a", weight=3.0), busy("b"), share=0.75)),
    Scenario("a weight of one in a hundred gets its hundredth", **pair(busy("a", weight=99.0), busy("b"), share=0.99)),
    Scenario(
        "weights in fractions share like any others",
        (busy("a", weight=0.2), busy("b", weight=0.3), busy("c", weight=0.5)),
        {"a": Expect(0.2), "b": Expect(0.3), "c": Expect(0.5)},
    ),
    Scenario(
        "a hundred tenants of one group get a hundred times the work of one",
        (Load("one", backlog=5), Load("many", tenants=100, backlog=5)),
        {"one": Expect(1 / 101, 0.002), "many": Expect(100 / 101, 0.002)},
    ),
    # ---- cost
    Scenario(
        "a request ten times as large is served a tenth as often",
        **pair(busy("large", cost=fixed(100.0)), busy("small"), margin=0.02),
    ),
    Scenario(
        "long prompts against long answers share the work when nobody knows an answer's length",
        **pair(
            busy("prompts", cost=between(40.0, 60.0), estimate=always(50.0)),
            busy("answers", cost=exponential(50.0), estimate=always(50.0)),
            margin=0.02,
        ),
    ),
    Scenario(
        "lengths that are drawn from a heavy tail share the work",
        **pair(
            busy("tail", cost=mostly(2.0, 200.0, 0.05), estimate=always(12.0)),
            busy("even", cost=fixed(12.0)),
            margin=0.03,
        ),
    ),
    Scenario(
        "one huge request among small ones is paid for",
        **pair(busy("huge", cost=mostly(5.0, 500.0, 0.01)), busy("small", cost=fixed(5.0)), margin=0.04),
        duration_s=120.0,
    ),
    # ---- unknown lengths
    Scenario(
        "an estimate of a tenth gains nothing",
        **pair(busy("low", estimate=times(0.1)), busy("true")),
    ),
    Scenario(
        "an estimate of ten times loses nothing",
        **pair(busy("high", estimate=times(10.0)), busy("true"), margin=0.02),
    ),
    Scenario(
        "an estimate of nothing at all gains nothing",
        **pair(busy("free", estimate=always(0.0)), busy("true"), margin=0.02),
    ),
    Scenario(
        "low against high estimates still share evenly",
        **pair(busy("low", estimate=times(0.1)), busy("high", estimate=times(10.0)), margin=0.02),
    ),
    Scenario(
        "one mean for all lengths shares evenly",
        **pair(
            busy("long", cost=exponential(30.0), estimate=always(20.0)),
            busy("short", cost=exponential(10.0), estimate=always(20.0)),
            margin=0.02,
        ),
    ),
    Scenario(
        "everyone charged at the most it may cost shares evenly",
        **pair(
            busy("a", cost=exponential(10.0), estimate=always(200.0)),
            busy("b", cost=exponential(20.0), estimate=always(200.0)),
            margin=0.03,
        ),
    ),
    Scenario(
        "weights hold with estimates that are wrong in either direction",
        **pair(busy("a", weight=3.0, estimate=times(0.2)), busy("b", estimate=times(5.0)), share=0.75, margin=0.02),
    ),
    Scenario(
        "many in flight with wrong estimates share evenly",
        **pair(
            Load("low", backlog=40, estimate=times(0.1)), Load("high", backlog=40, estimate=times(3.0)), margin=0.03
        ),
        slots=32,
        duration_s=30.0,
    ),
    # ---- coming and going
    Scenario(
        "idle for a while and back gets its half from then on, and nothing for before",
        (busy("a"), busy("b", from_s=20.0)),
        {"a": Expect(0.5, 0.01)},
        warm_up_s=20.5,
    ),
    Scenario(
        "a tenant that pauses every other five seconds gets its half of those it is here, and the line it left",
        (busy("a"), busy("b", pauses=tuple((at, at + 5.0) for at in range(5, 60, 10)))),
        {"b": Expect((5 * 200 + 5 * 10) / 4000, 0.01)},
        warm_up_s=0.0,
    ),
    Scenario(
        "one that comes back within the round gets one quantum of it like everybody",
        **pair(Load("sly", clients=1), busy("patient"), margin=0.02),
        slots=1,
    ),
    Scenario(
        "one that keeps its line empty at every visit gets no more than its share of four",
        (Load("sly", clients=2), *(busy(group) for group in "abc")),
        {"sly": Expect(0.25, 0.02), "a": Expect(0.25, 0.02)},
        slots=2,
    ),
    Scenario(
        "a huge request, a pause, and again, is not free",
        (
            Load("launders", every_s=1.5, cost=fixed(400.0)),
            busy("a"),
            busy("b"),
        ),
        {"launders": Expect(1 / 3, 0.04)},
        slots=2,
        duration_s=120.0,
    ),
    Scenario(
        "a charge that was far too high buys nothing when it is given back after a pause",
        **pair(Load("sly", clients=2, estimate=always(400.0)), busy("b"), margin=0.02),
        slots=2,
    ),
    Scenario(
        "bursts share with a steady tenant once they are in line",
        **pair(Load("bursts", every_s=5.0, burst=150), busy("steady"), margin=0.03),
        warm_up_s=5.0,
        duration_s=65.0,
    ),
    Scenario(
        "a steady light tenant does not feel the bursts of another",
        (Load("bursts", every_s=5.0, burst=100), Load("light", every_s=0.25)),
        {"light": Expect(p95_wait_s=0.12, most_wait_s=0.2)},
    ),
    Scenario(
        "a light tenant beside an overload waits for a slot and not for the line",
        (Load("aggressor", backlog=500), Load("light", every_s=0.5)),
        {"light": Expect(share=0.05, margin=0.005, p95_wait_s=0.11)},
    ),
    Scenario(
        "a light tenant waits for a slot, and not for a round of a hundred others",
        (Load("others", tenants=100, backlog=3), Load("light", every_s=3.0, from_s=5.0)),
        {"light": Expect(most_wait_s=0.11)},
        warm_up_s=5.0,
    ),
    Scenario(
        "two requests of a light tenant in one round fit into one quantum of it",
        (Load("others", tenants=100, backlog=3), Load("light", every_s=3.0, from_s=5.0, burst=2, cost=fixed(4.0))),
        {"light": Expect(most_wait_s=0.15)},
        warm_up_s=5.0,
    ),
    Scenario(
        "three hundred newcomers do not starve one who was there",
        (busy("old"), Load("new", tenants=300, every_s=10.0)),
        {"old": Expect(most_wait_s=9.0)},
    ),
    # ---- many
    Scenario(
        "one against ten thousand waits for one round of them at most",
        (Load("crowd", tenants=10_000, backlog=1), Load("one", backlog=1)),
        {"one": Expect(most_wait_s=12.6)},
        slots=80,
        duration_s=16.0,
        warm_up_s=0.0,
    ),
    Scenario(
        "ten thousand who ask once are served before one who asks for ten thousand",
        (Load("flood", backlog=10_000), Load("crowd", tenants=1_500, every_s=1000.0, from_s=1.0)),
        {"crowd": Expect(most_wait_s=7.7)},
        slots=20,
        duration_s=12.0,
        warm_up_s=0.0,
    ),
    # ---- storms
    Scenario(
        "a cancel storm gives its tenant no more than its share",
        **pair(busy("storm", cancels=0.9), busy("calm"), margin=0.03),
    ),
    Scenario(
        "a cancel storm costs the others nothing",
        (busy("storm", cancels=1.0), Load("light", every_s=0.5)),
        {"light": Expect(p95_wait_s=0.11)},
    ),
    Scenario(
        "an expiry storm costs the others nothing",
        (Load("storm", every_s=1.0, burst=150, patience_s=0.5), busy("calm"), Load("light", every_s=0.5)),
        {"light": Expect(p95_wait_s=0.11)},
    ),
    Scenario(
        "those whose time is short get their share as long as they are in time",
        **pair(Load("short", backlog=20, patience_s=0.3), Load("long", backlog=20), margin=0.02),
    ),
    # ---- readiness
    Scenario(
        "slow retrieval with enough in line loses no share",
        **pair(Load("slow", backlog=60, retrieval_s=0.5), busy("quick"), margin=0.02),
    ),
    Scenario(
        "what slow retrieval leaves goes to the others, and no slot waits",
        (Load("slow", backlog=4, retrieval_s=1.0), busy("quick")),
        {"slow": Expect(0.1, 0.02), "quick": Expect(0.9, 0.02)},
    ),
    # ---- workers
    Scenario(
        "a worker that is lost takes from everyone alike",
        **pair(busy("a"), busy("b", cost=fixed(20.0)), margin=0.02),
        slots=8,
        slots_at=((20.0, 3), (40.0, 8)),
    ),
    Scenario(
        "an outage of all slots leaves the shares as they were",
        **pair(busy("a", weight=2.0), busy("b"), share=2 / 3, margin=0.02),
        slots_at=((20.0, 0), (30.0, 4)),
    ),
    Scenario("one slot alone shares as well as many", **pair(busy("a"), busy("b")), slots=1),
    Scenario("more slots than anyone can fill share evenly", **pair(busy("a"), busy("b")), slots=64, duration_s=15.0),
    # ---- quanta
    Scenario(
        "a tiny quantum shares evenly", **pair(busy("a", cost=exponential(10.0)), busy("b"), margin=0.02), quantum=0.01
    ),
    Scenario(
        "a huge quantum shares evenly over long enough",
        **pair(busy("a"), busy("b"), margin=0.06),
        quantum=500.0,
        duration_s=120.0,
    ),
    Scenario(
        "a quantum that changes all the time shares evenly",
        **pair(busy("a", cost=fixed(40.0)), busy("b"), margin=0.02),
        quantum_at=tuple((float(at), 5.0 if at % 2 else 200.0) for at in range(1, 60)),
    ),
    # ---- classes
    Scenario(
        "a class of weight three gets three quarters however many ask in the other",
        (busy("gold", class_name="gold"), Load("tin", tenants=20, backlog=3, class_name="tin")),
        {"gold": Expect(0.75), "tin": Expect(0.25)},
        classes=TWO_CLASSES,
    ),
    Scenario(
        "weights within classes multiply",
        (
            busy("a", weight=2.0, class_name="gold"),
            busy("b", weight=1.0, class_name="gold"),
            busy("c", weight=4.0, class_name="tin"),
            busy("d", weight=1.0, class_name="tin"),
        ),
        {"a": Expect(0.5), "b": Expect(0.25), "c": Expect(0.2), "d": Expect(0.05)},
        classes=TWO_CLASSES,
    ),
    Scenario(
        "the lowest class has its floor",
        (busy("gold", class_name="gold"), busy("tin", class_name="tin")),
        {"gold": Expect(0.9), "tin": Expect(0.1)},
        classes=A_FLOOR,
    ),
    Scenario(
        "two floors hold together",
        (busy("gold", class_name="gold"), busy("tin", class_name="tin"), busy("rust", class_name="rust")),
        {"gold": Expect(0.8), "tin": Expect(0.1), "rust": Expect(0.1)},
        classes=(*A_FLOOR, ClassSpec("rust", 1.0, floor=0.1)),
    ),
    Scenario(
        "what an idle class leaves goes to the other",
        (busy("gold", class_name="gold", until_s=30.0), busy("tin", class_name="tin")),
        {"tin": Expect(1.0, 0.005)},
        classes=TWO_CLASSES,
        warm_up_s=32.0,
    ),
    Scenario(
        "a class with wrong estimates gets its weight and no more",
        (busy("gold", class_name="gold", estimate=times(5.0)), busy("tin", class_name="tin", estimate=times(0.1))),
        {"gold": Expect(0.75, 0.02), "tin": Expect(0.25, 0.02)},
        classes=TWO_CLASSES,
    ),
    Scenario(
        "a light tenant of the low class waits for a slot only",
        (Load("gold", backlog=100, class_name="gold"), Load("light", every_s=1.0, class_name="tin")),
        {"light": Expect(most_wait_s=0.11)},
        classes=TWO_CLASSES,
    ),
    # ---- changes at run time, and pools
    Scenario(
        "a weight raised at run time counts from then on",
        (busy("a"), busy("b")),
        {"a": Expect(0.75)},
        weights_at=((20.0, "a", 3.0),),
        warm_up_s=20.0,
    ),
    Scenario(
        "a weight raised while in debt pays the old debt at the old pace",
        **pair(busy("a", cost=fixed(200.0)), busy("b"), share=0.75, margin=0.04),
        weights_at=((20.0, "a", 3.0),),
        warm_up_s=20.0,
        duration_s=140.0,
    ),
    Scenario(
        "two pools share each on its own",
        **pair(busy("a", pools=("one", "two")), busy("b", pools=("one", "two")), margin=0.02),
    ),
    Scenario(
        "a tenant that uses two pools has its share in each",
        (
            Load("both", backlog=10, pools=("one", "two")),
            busy("one", pools=("one",)),
            busy("two", pools=("two",)),
        ),
        {"both": Expect(0.5, 0.05), "one": Expect(0.25, 0.03), "two": Expect(0.25, 0.03)},
    ),
    Scenario(
        "known lengths, equal sizes, one slot each: a plain round",
        tuple(Load(group, backlog=2, estimate=known) for group in "abcd"),
        {group: Expect(0.25, most_wait_s=0.35) for group in "abcd"},
    ),
)
