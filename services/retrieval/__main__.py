"""`python -m services.retrieval`: runs the retrieval service with settings from the environment."""

from __future__ import annotations

import sys

from services.retrieval.app import build
from services.retrieval.config import RetrievalSettings
from services.retrieval.modelfolder import ModelUnusable, find_model, shape_of
from services.runtime.serve import run
from services.runtime.settings import EXIT_BAD_SETTINGS, load


def main() -> int:
    settings = load(RetrievalSettings)
    try:
        model = find_model(settings.embed_model_path)
        shape_of(model, chunk_tokens=settings.chunk_tokens)
        return run(lambda: build(settings, model))
    except ModelUnusable as error:
        sys.stderr.write(f"retrieval: {error}\n")
        return EXIT_BAD_SETTINGS


if __name__ == "__main__":
    raise SystemExit(main())
