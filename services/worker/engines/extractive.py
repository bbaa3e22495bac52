"""The simulated engine's answers: the prompt's sentences that match the question best, with their passage's number.

A sentence's score is the content words that it shares with the question, weighted by inverse sentence frequency, with a
penalty for length. The prompt has the router's form: `<passage id="1" doc="docs/x.md">text</passage>` blocks, then
`Question: ...`, or else the last user message. Everything takes linear time, since prompts are untrusted.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from dataclasses import dataclass

from services.contracts.generate import GenerateRequest

MAX_PASSAGES = 50
MAX_SENTENCES = 600
MAX_SENTENCE_WORDS = 60
MIN_SENTENCE_WORDS = 4
MAX_TOPIC_WORDS = 14
QUOTES = 3
MIN_QUOTE_SCORE = 0.4  # share of the best sentence's score
OPENING_WORDS = 3
OPENING_BONUS = 1.5  # a sentence that begins with the word ("A lock is ...") likely defines it

_HEAD = re.compile(r'<passage id="(\d{1,4})"[^<>]{0,1024}>')
_CLOSE = "</passage>"
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_BLOCK = re.compile(r"\n[ \t]*\n\s*|\n(?=[ \t]*(?:[-*+#|>]|\d{1,3}[.)])\s?)")
_MARKER = re.compile(r"^(?:[-*+#>]+|\d{1,3}[.)])\s+")
_LINK = re.compile(r"\[([^\[\]\n]{1,300})\]\([^()\n]{0,300}\)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\w\"'“(])")
_HEADINGS = re.compile(r"\A\s*+([^\n]{1,1000}+)\n[ \t]*+\n")  # chunks begin with headings: services/retrieval/chunks.py
_FENCE = re.compile(r"^[ \t]*+(?:```|~~~)[ \t]*+(\w*+)[^\n`]*+$", re.MULTILINE)
_CODE = re.compile(  # a line that is a command, JSON, HTTP or a statement
    r"^[ \t]*(?:\$ |[{}]|\[[{\"\]]|HTTP/\d|-[dH] '|(?:from [\w.]+ )?import [\w.]+(?:,|$)|[\w.]+(?:\[.*\])?:? ?=[ {])"
    r"|\"\w{1,64}\":|\\$"
)
_STOPWORDS = frozenset(
    _WORD.findall(
        "a an and are as at be been but by can could did do does for from had has have how i if in into is it its me "
        "my no not of on or our please should so tell than that the their them then there these they this those to us "
        "was we were what when where which who whom why will with would you your about explain describe give say "
        "happens"
    )
)
_EVERYWHERE = frozenset({"weir"})  # in every sentence of the sample documents, so it discriminates nothing
_LEADS = ("From the documents: ", "The documents say: ", "In the words of the documents: ")


@dataclass(frozen=True, slots=True)
class Quotable:
    """A sentence of a passage, and the stems of its content words."""

    passage: str
    rank: int
    text: str
    stems: frozenset[str]
    opening: frozenset[str]


def answer(request: GenerateRequest) -> str:
    """The full natural answer to a request."""
    prompt = prompt_text(request)
    passages, rest = split_prompt(prompt)
    question = _question(request, rest)
    variant = zlib.crc32(prompt.encode("utf-8", "surrogatepass"), (request.seed or 0) & 0xFFFFFFFF)
    if not passages:
        return _without_documents(question)
    quotes = best_quotes(question, passages)
    if not quotes:
        return f"None of the passages in the prompt speaks of {_topic(question)}."
    lead = _LEADS[variant % len(_LEADS)]
    return lead + " ".join(f"{quote.text.rstrip('.;:, ')} [{quote.passage}]." for quote in quotes)


def prompt_text(request: GenerateRequest) -> str:
    """The prompt as one text: the completion's prompt, or a `role: content` line for each message."""
    if request.prompt is not None:
        return request.prompt
    return "".join(f"{message.role}: {message.content}\n" for message in request.messages or [])


def split_prompt(prompt: str) -> tuple[list[tuple[str, str]], str]:
    """The passages as (number, text), and the text after the last passage."""
    passages: list[tuple[str, str]] = []
    at = 0
    for head in _HEAD.finditer(prompt):
        if head.start() < at:
            continue  # an opening tag inside a passage is text
        end = prompt.find(_CLOSE, head.end())
        if end < 0 or len(passages) == MAX_PASSAGES:
            break
        passages.append((head[1], prompt[head.end() : end]))
        at = end + len(_CLOSE)
    return passages, prompt[at:]


def best_quotes(question: str, passages: list[tuple[str, str]]) -> list[Quotable]:
    """At most QUOTES sentences that match the question best, in the order of the passages."""
    sentences = _sentences(passages)
    wanted = stems(question) - _EVERYWHERE or stems(question)
    seen = Counter(stem for sentence in sentences for stem in sentence.stems & wanted)
    rarity = {stem: math.log1p(len(sentences) / count) for stem, count in seen.items()}
    scored = [(_score(sentence, rarity), -order, sentence) for order, sentence in enumerate(sentences)]
    ranked = sorted((row for row in scored if row[0] > 0), key=lambda row: row[:2], reverse=True)
    chosen: list[tuple[int, Quotable]] = []
    for score, order, sentence in ranked:
        if len(chosen) == QUOTES or score < MIN_QUOTE_SCORE * ranked[0][0]:
            break
        if all(sentence.text != other.text for _, other in chosen):
            chosen.append((-order, sentence))
    return [sentence for _, sentence in sorted(chosen, key=lambda row: row[0])]


def stems(text: str) -> frozenset[str]:
    """The content words of a text, in lower case and without common endings."""
    words = (word.lower() for word in _WORD.findall(text))
    return frozenset(_stem(word) for word in words if word not in _STOPWORDS and len(word) > 1)


def _stem(word: str) -> str:
    for ending in ("ingly", "tion", "ing", "ies", "ed", "es", "ly", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _score(sentence: Quotable, rarity: dict[str, float]) -> float:
    """Shared words weighted by rarity; long sentences and late passages count less."""
    shared = sum(rarity[stem] for stem in sorted(sentence.stems & rarity.keys()))
    bonus = OPENING_BONUS if sentence.opening & rarity.keys() else 1.0
    return bonus * shared / (1 + len(sentence.stems) / 30) * (1 - 0.01 * sentence.rank)


def _sentences(passages: list[tuple[str, str]]) -> list[Quotable]:
    found: list[Quotable] = []
    for rank, (number, body) in enumerate(passages):
        for block in _BLOCK.split(prose(body)):
            for text in _SENTENCE.split(_plain(block)):
                words = text.split()
                if len(words) < MIN_SENTENCE_WORDS or len(found) >= MAX_SENTENCES or " | " in text:
                    continue  # a table row is not a sentence
                shown = " ".join(words[:MAX_SENTENCE_WORDS]) + ("…" if len(words) > MAX_SENTENCE_WORDS else "")
                opening = stems(" ".join(words[:OPENING_WORDS]))
                found.append(Quotable(number, rank, shown, stems(shown), opening))
    return found


def prose(body: str) -> str:
    """A passage without its leading headings and without code."""
    headings = _HEADINGS.match(body)
    if headings and (" > " in headings[1] or not headings[1].rstrip().endswith((".", "!", ":", ";"))):
        body = body[headings.end() :]
    return "\n".join(line for line in _unfenced(body).split("\n") if not _CODE.search(line))


def _unfenced(body: str) -> str:
    """Without fenced code. A passage may start inside a fence: then its first fence has no language and ends it."""
    fences = list(_FENCE.finditer(body))
    inside = len(fences) % 2 == 1 and not fences[0][1]
    kept, at = [], 0
    for fence in fences:
        kept.append("" if inside else body[at : fence.start()])
        inside, at = not inside, fence.end()
    return "\n".join([*kept, "" if inside else body[at:]])


def _plain(block: str) -> str:
    """A Markdown block as plain text: no markers, no emphasis, a table row as `cell: cell`."""
    text = _MARKER.sub("", block.strip())
    if text.startswith("|"):
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        text = ": ".join(cell for cell in cells if cell.strip("-: "))
    text = _LINK.sub(r"\1", text)
    return " ".join(text.replace("**", "").replace("`", "").split())


def _question(request: GenerateRequest, rest: str) -> str:
    _, marked, question = rest.rpartition("Question:")
    if marked:
        return question.strip()
    if request.messages:
        return next((m.content for m in reversed(request.messages) if m.role == "user"), request.messages[-1].content)
    return rest.strip()


def _topic(question: str) -> str:
    words = [word for word in _WORD.findall(question[:2000]) if word.lower() not in _STOPWORDS]
    return " ".join(words[:MAX_TOPIC_WORDS]) or "that"


def _without_documents(question: str) -> str:
    return (
        f"This is Weir's simulated engine: it has the latency of a language model, and no knowledge of its own. "
        f"You asked about {_topic(question)}. No document stood in the prompt, so there is nothing to quote."
    )
