"""The storm bench: real load through the router for a bounded time, started by a button of the console.

    scenario -> plan -> arrivals -> client -> ledger -> report
                                      \\-> troubles (a slowed worker, a silent cache)

Arrivals are computed before the first request, and equal settings draw equal arrivals, so that two runs under two
policies get the same requests. The client is an open loop: it sends each request at its intended time and measures
latency from that time. A client that waits for a stalled server hides the stall (Tene's "coordinated omission").

The bench is a separate process, so it costs the router only the requests. One run at a time; rate, connections and
duration are bounded. Its faults end within seconds even if this process is killed: worker faults are short and renewed,
and the cache is paused for a second at a time.
"""
