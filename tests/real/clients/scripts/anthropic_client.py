"""The official `anthropic` package: Weir does not serve its API, and says so."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from common import HELLO, Given, main

MESSAGES: Any = [{"role": "user", "content": HELLO}]


def client(given: Given) -> Anthropic:
    return Anthropic(base_url=given.root, auth_token=given.key, max_retries=0, timeout=60)


OPERATIONS = {
    "models": lambda given: [model.id for model in client(given).models.list()],
    "messages": lambda given: client(given).messages.create(model=given.own, max_tokens=8, messages=MESSAGES),
    "count_tokens": lambda given: client(given).messages.count_tokens(model=given.own, messages=MESSAGES),
}

if __name__ == "__main__":
    main(OPERATIONS)
