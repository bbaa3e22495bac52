"""What doing less for each is worth under overload: `python -m loadtests.bench degradation`.

Real processes: a database with a tenant that is searched through the graph, a cache, retrieval, simulated workers, and
a router before them. Questions arrive whatever becomes of those before them (an open loop), at multiples of what the
workers can answer in full. Each load is asked three times, of routers that differ in nothing but their ladder.
"""
