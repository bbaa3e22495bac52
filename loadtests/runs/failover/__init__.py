"""`make failover`: routers that share their workers are killed one after the other behind HAProxy."""
