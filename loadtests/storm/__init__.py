"""The storm bench: real load through the router for a bounded time. See docs/architecture/storm-bench.md.

    scenario -> plan -> arrivals -> client -> ledger -> report
                                      \\-> troubles (a slowed worker, a silent cache)

Arrivals are computed before the first request, and equal settings draw equal arrivals, so that two runs under two
policies get the same requests. The bench is a separate process, so it costs the router only the requests. Its faults
end within seconds even if this process is killed.
"""
