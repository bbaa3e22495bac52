"""What several processes answered to one request of an operator, as one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: the process gave none, and `body` is a sentence that says why."""

    status: int
    body: bytes

    def shown(self) -> dict[str, Any]:
        try:
            body = msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            body = self.body.decode("utf-8", "replace")
        return {"status": self.status, "answer": body}


DIFFER = 409


def agreed(answers: Mapping[int, Answer]) -> Answer:
    """The answer of all processes, if they agree; else 409 with each one's.

    A change that all have made is answered as one process answers it, and so is one that all have refused.
    """
    first, *others = answers.values()
    if first.status and all(other == first for other in others):
        return first
    body = {
        "error": {
            "message": "the router processes did not answer alike: read `processes`, and send the request again",
            "type": "conflict",
            "code": "processes_differ",
            "param": None,
            "details": {},
        },
        "processes": [{"process": index, **answer.shown()} for index, answer in answers.items()],
    }
    return Answer(DIFFER, msgspec.json.encode(body))
