"""The whole system in one process and in virtual time: services, clients and faults from a seed, and a judge."""
