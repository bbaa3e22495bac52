"""The router. `app` assembles it; the packages, from the outside in:

    console, operating, routes   the routes
    serving                      one request, step by step: `serving/pipeline.py` has the order
    telemetry                    metrics, logs, traces, and records for the console
    deciding                     scheduling: which requests start, wait or are rejected
    workers, upstreams           the workers, their health, and their protocols
    rag, tenancy, parsing        retrieval, tenants, and the parsing of requests

Each imports only from those below it; the import contracts in pyproject.toml enforce that.
"""
