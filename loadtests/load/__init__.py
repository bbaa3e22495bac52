"""Open-loop load: arrivals that do not wait for answers.

    plan -> arrivals -> client -> ledger -> figures

A plan says who asks, how often, and by when. Arrivals are drawn from it before anything is known of the server. The
client sends each at its intended time whatever the server does, and writes one ledger row per distinct request. The
figures are read off the ledger. Only the client touches sockets and clocks; the rest is data and arithmetic.
"""
