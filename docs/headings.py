"""The lines of a page, and the anchors of its headings as GitHub makes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
FENCE = re.compile(r"^\s*(```|~~~)")


def lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """The numbered lines but for the fences themselves, and whether they stand inside of one."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if FENCE.match(line):
            fenced = not fenced
        else:
            yield number, line, fenced


def anchors(text: str) -> set[str]:
    seen: Counter[str] = Counter()
    found = set(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", text))
    for _, line, fenced in lines(text):
        if not fenced and (heading := HEADING.match(line)):
            slug = slugify(heading[1])
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def slugify(heading: str) -> str:
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
