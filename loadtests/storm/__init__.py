"""The storm bench: real load through the front door, started by a button, over by itself.

    scenario -> plan -> arrivals -> people -> ledger -> report
                  \\-> troubles (a worker slowed, the cache silent)

Everything up to `people` is data and arithmetic, known before the first request is sent: the same wish draws the same
arrivals, so that two runs under two policies met the same people. `people` sends each request at its intended time
whatever became of the others (open loop) and measures latency from that time, as Tene's "coordinated omission" asks:
a client that waits politely for a stalled server hides the stall from its own figures.

The bench is a process of its own, so that its work costs the router nothing but the requests, and it is bounded
wherever a person could ask for too much: one run at a time, so many requests a second, connections, and seconds. What
it breaks on purpose heals by itself within seconds, also when this process is killed: a worker's fault is put for a
short time and renewed, and the cache is paused for a second at a time.
"""
