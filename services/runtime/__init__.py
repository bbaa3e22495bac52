"""The edge that every service shares: settings, errors, the HTTP front and its guard, logs, drain, metrics.

Knows no service. A service composes these in its `app.py` and hands the result to `serve.run`.
"""
