"""Metrics, traces, snapshots, and the records of recent decisions."""
