"""What crosses the wire: one file per edge, named for the message it carries.

    answer    client    -> router     POST /ask
    openai    client    -> router     POST /v1/...
    search    router    -> retrieval  POST /retrieve, POST /embed
    generate  router    -> worker     POST /generate, POST /infer, GET /status
    problem   any       -> any        the one error body

Version 1. Unknown fields are ignored on every edge, so a newer peer may say more; a field that is known is
checked strictly, because a wrong type is a bug in the sender. Fields carry their unit in their name.
"""
