"""Several routers as real processes, each in a network namespace of its own: what do faults cost, and does it hold?

addresses -> commands -> namespaces    the network: its plan, its `ip` and `iptables` commands, their execution
tenants -> asking                      the load, and what each client got
stand                                  store, workers and routers as processes
deck -> injection                      the faults, their order, and their injection
record                                 what was observed: clients, logs of routers and workers, faults
steps -> ends, slots, shares           the judges: pure functions over what was observed
idle                                   why slots were idle, for whoever reads a missed target
sizes, play, report                    one run, and its page
"""
