"""What every service shares: settings, errors, the HTTP listener and its guard, logs, drain, metrics, traces.

It imports no service. A service composes these parts in its `app.py` and passes the result to `serve.run`.
"""
