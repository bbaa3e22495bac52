"""The least that an ASGI application can do, under uvicorn as it comes: a yardstick for the machine of the day.

Run: python -m loadtests.bench.bare PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

_BODY = b'{"error":{"message":"every place is taken","type":"rate_limit_error","code":"yield","param":null}}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="error", lifespan="off")
