"""What a command writes: passed on line by line as it comes, its end kept for the ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

#: How much of the end is kept: less than the ledger keeps of an error.
TAIL_LINES: Final = 100
TAIL_CHARACTERS: Final = 8_000
#: A longer line is passed on in pieces.
LONGEST_LINE: Final = 8_192


class Output:
    """Cuts a stream of bytes into lines, says each, and remembers the last ones. Not safe between threads."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._begun = bytearray()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._size = 0

    def feed(self, data: bytes) -> None:
        self._begun += data
        *lines, rest = bytes(self._begun).split(b"\n")
        self._begun = bytearray(rest)
        for line in lines:
            self._put(line)
        while len(self._begun) > LONGEST_LINE:
            self._put(bytes(self._begun[:LONGEST_LINE]))
            del self._begun[:LONGEST_LINE]

    def close(self) -> None:
        """The last line need not end with a newline."""
        if self._begun:
            self._put(bytes(self._begun))
            self._begun.clear()

    @property
    def tail(self) -> list[str]:
        """The last lines."""
        return list(self._tail)

    @property
    def last_line(self) -> str:
        """The last line that is not blank."""
        return next((line.strip() for line in reversed(self._tail) if line.strip()), "")

    def _put(self, line: bytes) -> None:
        text = line.removesuffix(b"\r").decode("utf-8", "replace")
        self._say(text)
        self._remember(text[:TAIL_CHARACTERS])

    def _remember(self, text: str) -> None:
        if len(self._tail) == TAIL_LINES:
            self._size -= len(self._tail.popleft())
        self._tail.append(text)
        self._size += len(text)
        while self._size > TAIL_CHARACTERS:
            self._size -= len(self._tail.popleft())
