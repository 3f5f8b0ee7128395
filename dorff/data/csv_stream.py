"""The text of a CSV file on its way to Arrow: what is no row blanked out, blanks made separators, records counted."""

import codecs
import re
from collections.abc import Collection
from typing import Any, Final

import numpy as np

from dorff.data.csv_numbers import is_number
from dorff.data.readers import Digest

NUL: Final = "holds a NUL byte, which CSV cannot have; remove it or, where the file is UTF-16 text, save it as UTF-8"
OPEN: Final = "opens a quote that does not end; remove the quote, or close it in a row of less than 1 MiB"
MOST_LINE: Final = 2**22  # bytes of a line
TOO_LONG: Final = f"is longer than {MOST_LINE >> 20} MiB; check its line ends and quotes, or that it is a table of text"
# After a separator or a line's end: a quoted field, kept as the group where its end may not have come.
QUOTED: Final = r"""(?<=[%s\r\n])(?:"[^"]*(?:""[^"]*)*"(?=[^"])|("[^"]*(?:""[^"]*)*"?\Z))"""


class TextFaultError(Exception):
    """What is wrong with the text, and at which byte: of the `file`, or of the text as it was cleaned."""

    def __init__(self, place: int, problem: str, *, of_file: bool) -> None:
        super().__init__(problem)
        self.place, self.problem, self.of_file = place, problem, of_file


def collapse_blanks(text: bytes) -> bytes:
    """Return whole lines with one tab for each run of blanks, and none at a line's ends; quoted fields stay."""
    if b'"' in text:
        text = re.sub(rb'("[^"\r\n]*")|[ \t]+', rb"\1\t", text)
        text = re.sub(rb"\t+", b"\t", text)
    else:
        text = re.sub(rb"[ \t]+", b"\t", text)
    return re.sub(rb"(?<![^\r\n])\t|\t(?![^\r\n])", b"", text)


class CleanedText:
    """A file without NUL bytes, lines of comments and what is before its first row; every line's end stays.

    `start` bytes come before the first row. A line that begins with one of `comments` is one, unless it has as many
    fields as a row, and a number among them: `checked` are the separator and the number of fields. With `blanks` tabs
    come for runs of blanks.
    """

    closed = False  # Arrow asks

    def __init__(
        self,
        file: Any,
        digest: Digest,
        *,
        start: int = 0,
        comments: tuple[str, ...] = (),
        blanks: bool = False,
        checked: tuple[str, int] | None = None,
    ) -> None:
        self._file, self._digest, self._blanks = file, digest, blanks
        self._markers = tuple(marker.encode() for marker in comments)
        either = b"|".join(map(re.escape, self._markers))
        self._comment = re.compile(rb"(?<![^\r\n])(?:\xef\xbb\xbf)?[ \t]*(?:%s)[^\r\n]*" % either)
        self._checked = checked
        self._rest, self._quotes = b"", 0
        self._line_begin = 0  # in the file
        head = self._take(start) if start else b""
        while len(head) < start and (more := self._take(start - len(head))):
            head += more
        self._ready = re.sub(rb"[^\r\n]+", b"", head)
        self._passed = len(self._ready)

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most so many; none at the end."""
        if not self._markers and not self._blanks:
            head, self._ready = self._ready[:size], self._ready[size:]
            return head + self._take(size - len(head)) if len(head) < size else head
        while not self._ready:
            piece = self._take(size)
            text = self._rest + piece
            stop = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            if not piece:
                stop = len(text)
            self._rest = text[stop:]
            self._ready = self._clean(text[:stop])
            if not piece:
                break
        out, self._ready = self._ready[:size], self._ready[size:]
        return out

    def _take(self, size: int) -> bytes:
        piece: bytes = self._file.read(size)
        if b"\0" in piece:
            raise TextFaultError(self._digest.length + piece.index(b"\0"), NUL, of_file=True)
        ends = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if ends:
            self._line_begin = self._digest.length + ends
        self._digest.update(piece)
        if self._digest.length - self._line_begin > MOST_LINE:
            raise TextFaultError(self._line_begin, TOO_LONG, of_file=True)
        return piece

    def _clean(self, text: bytes) -> bytes:
        if any(marker in text for marker in self._markers):
            text = self._uncomment(text)
        elif self._markers:
            self._quotes += text.count(b'"')
        cleaned = collapse_blanks(text) if self._blanks else text
        self._passed += len(cleaned)
        return cleaned

    def _uncomment(self, text: bytes) -> bytes:
        """Return whole lines, those empty that are comments; TextFaultError where one may be none."""
        parts: list[bytes] = []
        at = 0
        for match in self._comment.finditer(text):
            self._quotes += text.count(b'"', at, match.start())
            line = match[0].decode("utf-8", "replace")[:60]
            problem = ""
            if self._quotes % 2:
                problem = f"begins as a comment, {line!r}, inside of quotes; name other lines by --comment"
            elif self._may_be_a_row(match[0].decode("utf-8", "replace")):
                marker = line.lstrip()[:1]
                problem = f"is a comment by its beginning, {line!r}, but has as many fields as a row; "
                problem += f"give --comment {marker!r} to leave such lines out"
            if problem:
                place = self._passed + sum(map(len, parts)) + match.start() - at
                raise TextFaultError(place, problem, of_file=False)
            parts.append(text[at : match.start()])
            at = match.end()
        self._quotes += text.count(b'"', at)
        return b"".join([*parts, text[at:]])

    def _may_be_a_row(self, comment: str) -> bool:
        """Whether a comment has a row's number of fields, and a number among them."""
        if self._checked is None:
            return False
        delimiter, width = self._checked
        fields = [text.strip(' "') for text in comment.lstrip("#%/ \ufeff").split(delimiter)]
        return len(fields) == width and any(map(is_number, fields))


class SoughtWords:
    """Words that are looked for among the fields of text, which passes a piece at a time.

    `found` are those that a field was, in quotes or not, with blanks around it or not.
    """

    def __init__(self, words: Collection[str], separator: str) -> None:
        self.found: set[str] = set()
        ends = rb'[\s"%s]' % re.escape(separator.encode())
        self._sought = {word: (word.encode(), re.compile(ends + re.escape(word.encode()) + ends)) for word in words}
        self._rest = b"\n"

    def look(self, piece: bytes) -> None:
        """Look at the next piece; an empty one is the end."""
        if not self._sought:
            return
        text = self._rest + (piece or b"\n")
        for word, (content, pattern) in list(self._sought.items()):
            if content in text and pattern.search(text):
                self.found.add(word)
                del self._sought[word]
        longest = max((len(content) for content, _ in self._sought.values()), default=0)
        self._rest = text[-longest - 1 :]


class CountedText:
    """The text of a CSV file on its way to Arrow: quotes closed, its records counted by other code than Arrow's. They
    are the lines that are not empty; a quoted field's are its own (RFC 4180)."""

    closed = False  # Arrow asks

    def __init__(self, file: Any, delimiter: str, sought: SoughtWords) -> None:
        self._sought = sought
        separator = re.escape(delimiter.encode())
        self._file, self._quoted = file, re.compile(QUOTED.encode() % separator)
        self._opened = re.compile(b'(?<=[%s\r\n])"' % separator)
        self._length = 0
        self._held = b""
        self._records, self._rest = 0, b"\n"  # not counted yet: the last byte, and a quoted field that has no end yet

    @property
    def records(self) -> int:
        """How many have begun."""
        return self._records + (len(self._rest) > 1 and self._rest[:1] in b"\r\n")

    @property
    def quote(self) -> int:
        """The byte of a quote that has not been closed so far; 0 where there is none."""
        return self._length - len(self._rest) + 1 if self._rest.count(b'"', 1) % 2 else 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most so many; TextFaultError where a quote is open at the end.

        None but the last end in a CR, since Arrow would take the LF of the next ones for another end of a line.
        """
        piece: bytes = self._held + self._file.read(size - len(self._held))
        if piece == b"\r":
            piece += self._file.read(size - 1)
        self._sought.look(piece)
        self._held = b"\r" if len(piece) > 1 and piece.endswith(b"\r") else b""
        piece = piece.removesuffix(self._held)
        mark = codecs.BOM_UTF8 if self._length == 0 else b""
        if not piece and self.quote:
            raise TextFaultError(self.quote, OPEN, of_file=False)
        self._length += len(piece)
        text = self._rest + piece.removeprefix(mark)
        stop = len(text)
        if b'"' in text:
            text = self._quoted.sub(rb"\1_", text)
            unended = self._opened.search(text)
            stop, text = (unended.start(), text[:-1]) if unended else (len(text), text)
        values = np.frombuffer(text, np.uint8, stop)
        ends = values == 10
        if b"\r" in text:
            ends |= values == 13
        self._records += int(np.count_nonzero(ends[:-1] > ends[1:]))
        self._rest = text[stop - 1 :]
        if len(self._rest) > MOST_LINE:
            raise TextFaultError(self.quote, OPEN, of_file=False)
        return piece
