"""Tokens of language models: the estimate for a request, and the usage reported by a response."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from redis_ratelimit.quantities import MOST

# Fields of a request that contain input for the model.
_PROMPT_FIELDS = ("messages", "prompt", "input", "system", "instructions", "tools", "contents")
_MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

# Approximate number of characters in a token, which is precise enough for an estimate.
_CHARACTERS_A_TOKEN = 4

# Kinds of tokens by the names of usage fields in the APIs of providers.
_USAGE = {
    "prompt_tokens": "input",
    "input_tokens": "input",
    "promptTokenCount": "input",
    "completion_tokens": "output",
    "output_tokens": "output",
    "candidatesTokenCount": "output",
    "total_tokens": "total",
    "totalTokenCount": "total",
}

# A usage field in JSON. Generated text cannot match, as its quotes are escaped.
_USAGE_IN_BYTES = re.compile(rb'"(%s)"\s*:\s*(\d+)' % "|".join(_USAGE).encode())
# Upper bound of the bytes of a usage field with its number.
_MAX_USAGE_FIELD = 64


def estimate(data: Mapping[str, Any], default_output: int) -> int:
    """Estimates the tokens that a request can cost: its prompt, and the maximum that the model may
    generate, which is `default_output` if the request sets none. The largest of several maxima
    counts, as providers differ in the field that they obey.
    """
    choices = _count(data.get("n")) or 1
    maxima = (_count(data.get(name)) for name in _MAX_TOKENS_FIELDS)
    output = max((count for count in maxima if count is not None), default=default_output)
    return min(max(prompt_tokens(data) + output * choices, 1), MOST)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def prompt_tokens(data: Mapping[str, Any]) -> int:
    characters = sum(_length(data.get(name)) for name in _PROMPT_FIELDS)
    return ceil(characters / _CHARACTERS_A_TOKEN)


def _length(value: object) -> int:
    if isinstance(value, str):
        # Images are not text.
        return 0 if value.startswith("data:") else len(value)
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_length, value))
    return 0


class Tokens:
    """Token usage of a response, from a whole response or the chunks of a stream."""

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt
        self._reported: dict[str, int] = {}
        self._characters = 0
        self._tail = b""

    def add(self, part: Any) -> None:
        """Adds a response, or a chunk of one."""
        if isinstance(part, (bytes, str)):
            self._add_bytes(part.encode() if isinstance(part, str) else part)
            return
        for source in (part, _get(part, "response"), _get(part, "message")):
            usage = _get(source, "usage")
            for name, counter in _USAGE.items():
                self._record(counter, _get(usage, name))
        for choice in _get(part, "choices") or ():
            text = _get(_get(choice, "delta") or choice, "content") or _get(choice, "text")
            self._characters += len(text) if isinstance(text, str) else 0

    @property
    def prompt(self) -> int:
        """Approximate number of tokens of the prompt."""
        return self._prompt

    def _add_bytes(self, part: bytes) -> None:
        text = self._tail + part
        for name, number in _USAGE_IN_BYTES.findall(text):
            self._record(_USAGE[name.decode()], int(number))
        # A chunk may end within a number, so its end is matched again with the next chunk.
        self._tail = text[-_MAX_USAGE_FIELD:]

    def _record(self, counter: str, number: object) -> None:
        # Streams report cumulative counts.
        if isinstance(number, int):
            self._reported[counter] = max(self._reported.get(counter, 0), number)

    @property
    def reported(self) -> int | None:
        """Number of tokens that the model reported, or None if it reported none."""
        sum_of_parts = self._reported.get("input", 0) + self._reported.get("output", 0)
        return max(sum_of_parts, self._reported.get("total", 0)) or None

    @property
    def estimated(self) -> int | None:
        """Estimate from the text received so far, or None if there is none."""
        if self._characters == 0:
            return None
        return self._prompt + ceil(self._characters / _CHARACTERS_A_TOKEN)


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
