"""Estimates how many tokens a picture, a sound or a file adds to a prompt, from its size. Nothing is decoded.

A picture costs its pixels divided by 784, the square of 28 pixels that Qwen2-VL makes a token of; OpenAI's tiles (170
tokens for 512 x 512 pixels) and Anthropic's rule (pixels / 750) are near it. Width and height are in the first bytes of
PNG, GIF, WebP and JPEG. Sound is about 25 tokens a second (Qwen2-Audio), at 16,000 bytes a second for mp3 and 32,000
for wav. What is only named, by a URL or an id, counts as REFERENCE_TOKENS. An answer's own count corrects each
estimate at its end.
"""

from __future__ import annotations

import base64
import binascii
from math import ceil
from typing import Any

from services.contracts.openai import Part

PIXELS_PER_TOKEN = 28 * 28
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 64, 16_384
LOW_DETAIL_TOKENS = 85
"""OpenAI's `detail: low`."""
REFERENCE_TOKENS = 1024
SOUND_BYTES_PER_TOKEN = {"wav": 1280}
COMPRESSED_SOUND_BYTES_PER_TOKEN = 640
FILE_BYTES_PER_TOKEN = 16
UNKNOWN_IMAGE_BYTES_PER_TOKEN = 300
HEAD_CHARS = 65_536
"""Of base64, in which a JPEG's size is looked for, behind its metadata."""
_NO_SIZE = (0xC4, 0xC8, 0xCC)
"""JPEG segments among 0xC0 to 0xCF that do not hold the size."""


def part_tokens(part: Part) -> int:
    """The estimate for a part that is not text; 0 for text."""
    if part.type == "image_url":
        return _image_tokens(part.image_url)
    if part.type == "input_audio":
        return _sound_tokens(part.input_audio)
    if part.type in ("text", "refusal"):
        return 0
    return _other_tokens(part.file or part.video_url or part.audio_url)


def _image_tokens(image: Any) -> int:
    url, detail = (image.get("url"), image.get("detail")) if isinstance(image, dict) else (image, None)
    if detail == "low":
        return LOW_DETAIL_TOKENS
    data = _inline(url)
    if data is None:
        return REFERENCE_TOKENS
    size = image_size(_head(data))
    tokens = _bytes(data) / UNKNOWN_IMAGE_BYTES_PER_TOKEN if size is None else size[0] * size[1] / PIXELS_PER_TOKEN
    return min(MAX_IMAGE_TOKENS, max(MIN_IMAGE_TOKENS, ceil(tokens)))


def _sound_tokens(sound: Any) -> int:
    data = sound.get("data") if isinstance(sound, dict) else None
    if not isinstance(data, str):
        return REFERENCE_TOKENS
    encoding = sound.get("format")
    per_token = SOUND_BYTES_PER_TOKEN.get(encoding) if isinstance(encoding, str) else None
    return 1 + _bytes(data) // (per_token or COMPRESSED_SOUND_BYTES_PER_TOKEN)


def _other_tokens(value: Any) -> int:
    named = (value.get("url") or value.get("file_data")) if isinstance(value, dict) else value
    data = _inline(named)
    return REFERENCE_TOKENS if data is None else 1 + _bytes(data) // FILE_BYTES_PER_TOKEN


def _inline(url: Any) -> str | None:
    """The base64 of a data URL; None for any other."""
    if not isinstance(url, str) or url[:5].lower() != "data:":
        return None
    return url.partition(",")[2]


def _bytes(base64_text: str) -> int:
    return len(base64_text) * 3 // 4


def _head(base64_text: str) -> bytes:
    start = base64_text[:HEAD_CHARS]
    try:
        return base64.b64decode(start[: len(start) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def image_size(head: bytes) -> tuple[int, int] | None:
    """(width, height) in pixels by the first bytes of a picture; None if they do not say."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return _big(head[16:20]), _big(head[20:24])
    if head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        return _little(head[6:8]), _little(head[8:10])
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp_size(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(head)
    return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        return _little(head[24:27]) + 1, _little(head[27:30]) + 1
    if kind == b"VP8 ":
        return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF
    if kind == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """From the frame header, which follows segments of a length each."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            return _big(head[at + 7 : at + 9]), _big(head[at + 5 : at + 7])
        at += 2 + max(2, _big(head[at + 2 : at + 4]))
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
