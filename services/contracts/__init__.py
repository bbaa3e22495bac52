"""Messages between processes, one module per interface.

    answer     client  -> router             POST /ask
    openai     client  -> router             POST /v1/...
    documents  client  -> router, retrieval  /documents
    search     router  -> retrieval          POST /retrieve, POST /embed
    generate   router  -> worker             POST /generate, POST /infer, POST /cancel/{id}, GET /status
    console    router  -> browser            GET /console/events, GET /console/requests/{id}
    storm      browser -> storm bench        /storm
    problem    any     -> any                the error body

Unknown fields are ignored, so that a newer peer may send more; only the bodies of `PUT /documents/{id}` and `POST
/storm` reject them. Known fields are checked strictly. Field names carry their unit.
"""
