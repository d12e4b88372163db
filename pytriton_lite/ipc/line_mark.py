"""What a worker puts in front of a printed line to say which requests it is about, and the engine takes out again.

Printed text goes through a pipe, so that C code and child processes of a model are heard, too, and in order. Python's own
streams mark their lines while a request with an id is handled; what is written below them has no mark. A mark holds a
number that the engine draws anew for each worker, so no text that a model prints, and no id that a client sends, is taken
for one.
"""

from __future__ import annotations

_BEGIN = "\x1e"
_END = "\x1f"


class LineMark:
    """The marks of one worker. *number* is what the engine wrote into its control page."""

    def __init__(self, number: int) -> None:
        self._head = f"{_BEGIN}{number:016x} "

    def put(self, request_id: str, text: str, *, is_mid_line: bool) -> str:
        """*text* with a mark at the beginning of each of its lines; the first is none where *is_mid_line*.

        *request_id* has no control characters (`core.request_ids`).
        """
        mark = f"{self._head}{request_id}{_END}"
        marked = text[:-1].replace("\n", f"\n{mark}") + text[-1:]
        return marked if is_mid_line else mark + marked

    def take(self, line: str) -> tuple[str, str]:
        """*line* without marks, and the request id that the first of them names, else an empty text.

        A mark is not at the beginning where something below Python's streams had begun the line.
        """
        text, *marked = line.split(self._head)
        first_id = ""
        for part in marked:
            request_id, end, rest = part.partition(_END)
            if end and _BEGIN not in request_id:
                text += rest
                first_id = first_id or request_id
            else:
                text += self._head + part
        return text, first_id
