"""What a picture, a sound and a file are taken for, by their first bytes and their length."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.openai import Part
from services.router.parsing.media import (
    LOW_DETAIL_TOKENS,
    MAX_IMAGE_TOKENS,
    MIN_IMAGE_TOKENS,
    REFERENCE_TOKENS,
    image_size,
    part_tokens,
)

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1120).to_bytes(4, "big") + (560).to_bytes(4, "big")
GIF = b"GIF89a" + (320).to_bytes(2, "little") + (200).to_bytes(2, "little")
APP0 = b"\xff\xe0\0\x10JFIF" + bytes(10)
JPEG = b"\xff\xd8" + APP0 + b"\xff\xc4\0\x04ab" + b"\xff\xc2\0\x11\x08" + (480).to_bytes(2, "big") + b"\x02\x80"
LOSSY = b"RIFF....WEBPVP8 " + bytes(10) + (300).to_bytes(2, "little") + (200).to_bytes(2, "little")
LOSSLESS = b"RIFF....WEBPVP8L" + bytes(4) + b"\x2f" + (299 | 199 << 14).to_bytes(4, "little") + bytes(8)
EXTENDED = b"RIFF....WEBPVP8X" + bytes(8) + (299).to_bytes(3, "little") + (199).to_bytes(3, "little")


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (PNG, (1120, 560)), (GIF, (320, 200)), (JPEG, (640, 480)), (LOSSY, (300, 200)), (LOSSLESS, (300, 200)),
        (EXTENDED, (300, 200)), (b"", None), (b"BM", None), (b"\xff\xd8\xff", None),
        (b"RIFF....WEBPVP9 " + bytes(20), None),
        (PNG[:20], None), (b"\xff\xd8" + b"\xff\xe0\0\0" * 20, None),
    ],
)  # fmt: skip
def test_the_size_of_a_picture_is_in_its_first_bytes(head: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(head) == size


def url(data: bytes) -> str:
    return "data:image/x;base64," + base64.b64encode(data).decode()


def image(value: Any) -> int:
    return part_tokens(Part("image_url", image_url=value))


def test_a_picture_costs_its_pixels_within_bounds() -> None:
    big = PNG[:16] + b"\xff" * 8
    assert image({"url": url(PNG)}) == image(url(PNG)) == 1120 * 560 // 784
    assert image({"url": url(PNG), "detail": "low"}) == LOW_DETAIL_TOKENS
    assert image({"url": url(big)}) == MAX_IMAGE_TOKENS
    assert image({"url": url(b"unknown")}) == MIN_IMAGE_TOKENS
    assert image({"url": url(b"u" * 300_000)}) == 1000
    assert image({"url": "https://a.test/x.png"}) == image(None) == image(7) == REFERENCE_TOKENS


def test_sounds_and_files_cost_by_their_bytes_and_text_nothing() -> None:
    data = "A" * 17_066  # 12,799 bytes
    assert part_tokens(Part("input_audio", input_audio={"data": data, "format": "mp3"})) == 20
    assert part_tokens(Part("input_audio", input_audio={"data": data, "format": "wav"})) == 10
    assert part_tokens(Part("file", file={"file_data": "data:application/pdf;base64," + data})) == 800
    for by_name in (Part("file", file={"file_id": "f"}), Part("video_url", video_url={"url": "https://a.test"})):
        assert part_tokens(by_name) == REFERENCE_TOKENS
    assert part_tokens(Part("text", "x")) == part_tokens(Part("refusal", refusal="x")) == 0


ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=9) | st.binary(max_size=40).map(url),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["url", "data", "format", "detail", "file_data"]), inner, max_size=3)
    ),
    max_leaves=4,
)


@given(st.sampled_from(["image_url", "input_audio", "file", "video_url", "of_next_year"]), ANY)
def test_whatever_a_part_holds_it_has_an_estimate_and_is_never_an_error_of_ours(kind: str, value: Any) -> None:
    part = Part(kind, image_url=value, input_audio=value, file=value, video_url=value)
    assert 0 < part_tokens(part) <= MAX_IMAGE_TOKENS


@given(st.sampled_from([PNG, GIF, JPEG, LOSSY, LOSSLESS, EXTENDED]), st.integers(0, 40), st.binary(max_size=20))
def test_a_cut_or_broken_head_is_no_error(head: bytes, at: int, more: bytes) -> None:
    size = image_size(head[:at] + more)
    assert size is None or min(size) >= 0
