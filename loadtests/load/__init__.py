"""Open-loop load: arrivals that do not wait for answers.

    plan -> arrivals -> client -> ledger -> figures

A plan states tenants, rates and deadlines. All arrivals are drawn from it in advance. The client sends each at its
intended time and writes one ledger row per distinct request; the figures are computed from the ledger. Only the client
uses sockets and clocks.
"""
