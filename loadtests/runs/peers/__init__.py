"""Weir and what an engineer would reach for first, side by side: the same workers, the same arrivals, one table."""
