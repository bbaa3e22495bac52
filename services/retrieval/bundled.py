"""Checks by SHA-256 that the bundled model is the published one: `python -m services.retrieval.bundled`.

The package with the model has an anonymous author and no repository. Its content is that of
https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2, revision c9745ed1d9f207416be6d2e6f8de32d1f16199bf. The
hashes below are of that revision's files: all that are read here, and the vocabulary. They are checked when an image is
built and whenever the model is loaded (90 MB, a fraction of a second).
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from services.retrieval.modelfolder import BUNDLED, BUNDLED_NAME, ModelUnusable, find_model

PUBLISHED = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
}
EXIT_OTHER = 1


def check(folder: Path) -> None:
    """Compare the bundled model with the published hashes; any other model passes. Raises ModelUnusable."""
    if folder.parent.name != BUNDLED:
        return
    wrong = [fault for name, expected in PUBLISHED.items() if (fault := _fault(folder / name, expected))]
    if wrong:
        raise ModelUnusable(
            f"the installed package {BUNDLED.replace('_', '-')} does not hold {BUNDLED_NAME} as it is published: "
            f"{'; '.join(wrong)}. Do not use it: find out where it came from, install it again from "
            "requirements/weights.txt, or set EMBED_MODEL_PATH to a folder with a model that you trust"
        )


def _fault(path: Path, expected: str) -> str:
    """Why the file is not the published one; empty if it is."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return "" if found == expected else f"{path} has SHA-256 {found}, and {expected} is published"


def main() -> int:
    try:
        folder = find_model()
        check(folder)
    except ModelUnusable as error:
        sys.stderr.write(f"embedder: {error}\n")
        return EXIT_OTHER
    sys.stdout.write(f"embedder: {len(PUBLISHED)} files of {BUNDLED_NAME} are as published\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
