"""The front door. `app` plugs it together; below it, from the outside in:

    console, operating, routes   what people and programs may ask of it
    serving                      one request (`request.py`), step by step: begin with `serving/pipeline.py`
    telemetry                    what happened, for metrics, logs, traces and the console
    deciding                     who starts, who waits and who is refused
    workers, upstreams           who serves, whether they are well, and how each kind is spoken to
    rag, tenancy, parsing        passages for a question, tenants, and what a client asks for

Each package imports from those below it and from none above; the import contracts in pyproject.toml hold it to that.
"""
