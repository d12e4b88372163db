"""Requests that differ from an earlier one in their lengths, their id and their tensors' bytes alone are not parsed again.

Answers that differ in these alone are not made anew, either: `codec.OutputForms.template`.
"""

from __future__ import annotations

import re

from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Buffer, PackedTensors, Tensor
from pytriton_lite.frontends.http.codec import KnownDocuments, OutputForms
from pytriton_lite.ipc.messages import form_of

LONGEST_HEAD = 4096
"""No longer head is known again."""
_MOST_HEAD_BYTES = 1 << 20
"""Bytes of heads that a listener remembers: some 4,000 of them. What is kept of one takes 3 to 30 times its length."""
_MOST_ALIKE = 4
"""Heads with the same request line that differ in more than a hole lets pass: those of clients of different kinds."""
_MOST_LINES = 34
"""A head of more lines is kept without holes, for whose pattern `re` takes some 60 us of the loop's time for each line."""
_MOST = 512
_LONGEST = 2048

_LENGTHS = re.compile(rb"\r\n(content-length|inference-header-content-length):[ \t]*([0-9]+)(?=\r\n)", re.IGNORECASE)
_MOST_DIGITS = 5

_ID = re.compile(rb'\{ *"id" *: *"([ !#-\[\]-~]*)" *,')
"""The beginning of a document whose first member is an id that reads as it is written."""


_FIELDS = re.compile(rb"\r\n([^:\r\n]+):([^\r\n]*)(?=\r\n)")
_TELLING = frozenset(
    (
        *(
            b"accept-encoding",
            b"connection",
            b"content-encoding",
            b"content-length",
            b"content-type",
            b"expect",
            b"host",
        ),
        *(b"http2-settings", b"inference-header-content-length", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade"),
    )
)
"""Headers whose values say how a request is to be read or answered. All others are for those who watch requests."""
_NUMBER = rb"([0-9]{1,5})"
_VALUE = rb"[\t -~\x80-\xff]*"
"""A header's value, as a parser takes it."""


class KnownHead:
    """The head of an ordinary request, cut where the numbers of Content-Length and Inference-Header-Content-Length stand in it.

    A head with other numbers there, and every other byte the same, means the same but for them. Where ``has_holes``, headers
    that tell nothing of how the request is to be read may have other values, too.
    """

    __slots__ = (
        "_begin",
        "_between",
        "_end",
        "_is_json_first",
        "_pattern",
        "encoding",
        "has_holes",
        "headers",
        "nbytes",
        "shape",
        "target",
    )

    def __init__(
        self,
        begin: bytes,
        between: bytes,
        end: bytes,
        *,
        is_json_first: bool,
        shape: bytes,
        pattern: re.Pattern[bytes] | None,
    ) -> None:
        """What stands before the first number, between the two, empty where there is one alone, and behind the last.

        *shape* is the text of a pattern for all of it with holes, and *pattern* that, compiled.
        """
        self.has_holes = pattern is not None
        self.shape = shape
        """Equal for heads that differ in the lengths and in what tells nothing."""
        self.nbytes = len(begin) + len(between) + len(end)
        """Length of the head without its two numbers."""
        self.target: tuple[str, str | None] = ("", None)
        """Model, and version as it stands in the path."""
        self.headers: dict[bytes, bytes] = {}
        """Headers of the request that the head was kept from, names in lower case. Nobody changes them: others share them."""
        self.encoding: str | None = None
        """What the answer is compressed with: ``gzip``, ``deflate``, or None."""
        self._pattern = pattern
        self._begin = begin
        self._between = between
        self._end = end
        self._is_json_first = is_json_first

    def read(self, data: bytes) -> tuple[int, int, int] | None:
        """Where the body begins in *data*, how long it is, and its JSON part, -1 where the head says nothing of that.

        None where *data* does not begin with such a head.
        """
        if self._pattern is not None:
            found = self._pattern.match(data)
            if found is None or found.end() > LONGEST_HEAD:
                return None
            first = int(found[1])
            if not self._between:
                return found.end(), first, -1
            last = int(found[2])
            return (found.end(), last, first) if self._is_json_first else (found.end(), first, last)
        if not data.startswith(self._begin):
            return None
        begin = len(self._begin)
        end = data.find(b"\r", begin, begin + _MOST_DIGITS + 1)
        digits = data[begin:end]
        if end < 0 or not digits.isdigit():
            return None
        first = int(digits)
        if not self._between:
            if not data.startswith(self._end, end):
                return None
            return end + len(self._end), first, -1
        if not data.startswith(self._between, end):
            return None
        begin = end + len(self._between)
        end = data.find(b"\r", begin, begin + _MOST_DIGITS + 1)
        digits = data[begin:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._end, end):
            return None
        last = int(digits)
        body = end + len(self._end)
        return (body, last, first) if self._is_json_first else (body, first, last)


def known_head(head: bytes, *, has_holes: bool = False) -> KnownHead | None:
    """*head*, which a parser has taken, with its empty line; None where it says other things of the lengths than usual."""
    found = list(_LENGTHS.finditer(head))
    names = [match[1].lower() for match in found]
    if names.count(b"content-length") != 1 or len(names) != len(set(names)):
        return None
    if head.lower().count(b"content-length") != len(names):  # one is written otherwise
        return None
    first, last = found[0], found[-1]
    between = head[first.end(2) : last.start(2)] if len(found) > 1 else b""
    shape = _with_holes(head)
    return KnownHead(
        head[: first.start(2)],
        between,
        head[last.end(2) :],
        is_json_first=names[0] != b"content-length",
        shape=shape,
        pattern=re.compile(shape) if has_holes else None,
    )


def _with_holes(head: bytes) -> bytes:
    """A pattern of *head*, the lengths in it as groups, and of every head that differs in what tells nothing."""
    pieces: list[bytes] = []
    at = 0
    for field in _FIELDS.finditer(head):
        name = field[1].lower()
        if name not in _TELLING:
            begin, end, hole = field.start(2), field.end(2), _VALUE
        elif name.endswith(b"content-length"):
            value = field[2]
            begin = field.start(2) + len(value) - len(value.lstrip(b" \t"))
            end, hole = field.end(2), _NUMBER
        else:
            continue
        pieces += re.escape(head[at:begin]), hole
        at = end
    return b"".join([*pieces, re.escape(head[at:])])


class KnownHeads:
    """The heads of ordinary requests that clients of a listener have sent lately, found by their request lines.

    A proxy sends requests for many models, of many clients, on each of its connections. Of heads that differ in what tells
    nothing, as an id does that is another one in each request, one alone is kept, with holes. Emptied when full.
    """

    def __init__(self) -> None:
        self._by_line: dict[bytes, list[KnownHead]] = {}
        self._nbytes = 0
        """Bytes of all heads that are kept."""

    def find(self, data: bytes, *, is_exact: bool) -> tuple[KnownHead, tuple[int, int, int]] | None:
        """The head that *data* begins with, and what it reads there; None where it is not known.

        *is_exact* wants one without holes.
        """
        for known in self._by_line.get(_line(data), ()):
            if is_exact and known.has_holes:
                continue
            found = known.read(data)
            if found is not None:
                return known, found
        return None

    def keep(
        self,
        head: bytes,
        target: tuple[str, str | None],
        headers: dict[bytes, bytes],
        encoding: str | None,
        *,
        is_exact: bool,
    ) -> KnownHead | None:
        """Remember *head*, which `find` has not found, and what a parser has read in it; *headers* are kept, not copied.

        None where it says other things of the lengths than usual. *is_exact* wants it without holes.
        """
        known = known_head(head)
        if known is None:
            return None
        if self._nbytes > _MOST_HEAD_BYTES:
            self._by_line.clear()
            self._nbytes = 0
        alike = self._by_line.setdefault(_line(head), [])
        gone = [other for other in alike if other.shape == known.shape]
        if gone and not is_exact and head.count(b"\r\n") <= _MOST_LINES:
            known = known_head(head, has_holes=True)
            assert known is not None
        elif not gone and len(alike) == _MOST_ALIKE:
            gone = alike[:1]
        for other in gone:
            alike.remove(other)
            self._nbytes -= other.nbytes
        known.target, known.headers, known.encoding = target, headers, encoding
        alike.append(known)
        self._nbytes += known.nbytes
        return known


def _line(data: bytes) -> bytes:
    return data[: data.find(b"\r\n", 0, LONGEST_HEAD)]


class Template:
    """What the JSON part of a request says when all its inputs are binary."""

    __slots__ = ("_form", "_inputs", "_request", "forms", "has_id_cut", "nbytes")

    def __init__(self, request: InferenceRequest, forms: OutputForms, *, has_id_cut: bool) -> None:
        self.forms = forms
        self.has_id_cut = has_id_cut
        """Whether the document began with an id that is not part of the template's key."""
        self.nbytes = sum(tensor.nbytes for tensor in request.inputs)
        self._form = form_of(request.inputs)
        self._inputs = [(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in request.inputs]
        self._request = _with_inputs(request, request.model_name, request.version, request.request_id, [], None)

    def request(
        self, model_name: str, version: int | None, request_id: str | None, body: bytes, at: int
    ) -> InferenceRequest:
        """The request whose tensors are the last ``nbytes`` bytes of *body*, which begin at *at*.

        Without *request_id* it has the template's.
        """
        if request_id is None:
            request_id = self._request.request_id
        form = self._form
        if form is not None:
            pieces: list[Buffer] = []
            for nbytes in form.sizes:
                pieces.append(body[at : at + nbytes])
                at += nbytes
            return _with_inputs(self._request, model_name, version, request_id, None, form.pack(pieces))
        binary = memoryview(body)
        inputs: list[Tensor] = []
        for name, datatype, shape, nbytes in self._inputs:
            inputs.append(Tensor(name, datatype, shape, binary[at : at + nbytes], nbytes))
            at += nbytes
        return _with_inputs(self._request, model_name, version, request_id, inputs, None)


class Templates:
    """The JSON parts seen lately, without their ids. Emptied when full: what never comes again must not stay for ever."""

    def __init__(self) -> None:
        self._by_rest: dict[bytes, Template] = {}
        self.documents = KnownDocuments()
        """What is known of documents that are parsed, since their numbers are in them."""

    def read(
        self, document: bytes, model_name: str, version: int | None, body: bytes
    ) -> tuple[InferenceRequest, OutputForms] | None:
        """The request of *body*, which begins with *document*; None where no such document has been kept."""
        request_id, rest = _without_id(document)
        template = self._by_rest.get(rest)
        at = len(document)
        if template is None or template.nbytes != len(body) - at:
            return None
        # A document that lacks its beginning is what is left of one whose id was cut out, and it is no JSON.
        if template.has_id_cut is (request_id is None):
            return None
        return template.request(model_name, version, request_id, body, at), template.forms

    def keep(self, document: bytes, request: InferenceRequest, forms: OutputForms, binary_bytes: int) -> None:
        """Remember a decoded request, if it is of the kind that repeats. *binary_bytes* were behind *document*.

        All its tensors lie there: what is in a region may change, and what is in *document* was read from there.
        """
        request_id, rest = _without_id(document)
        if len(rest) > _LONGEST or request.output_windows is not None:
            return
        # Of several ids the last one counts, and an escape may hide the name of one.
        if request_id is not None and (b'"id"' in rest or b"\\" in rest):
            return
        if not all(type(tensor.data) is memoryview for tensor in request.inputs):
            return
        template = Template(request, forms, has_id_cut=request_id is not None)
        if template.nbytes != binary_bytes:
            return
        if len(self._by_rest) >= _MOST:
            self._by_rest.clear()
        self._by_rest[rest] = template


def _without_id(document: bytes) -> tuple[str | None, bytes]:
    """The id that *document* begins with, and what stands behind it; None and all of it where it begins otherwise."""
    found = _ID.match(document)
    if found is None:
        return None, document
    return found[1].decode("ascii"), document[found.end() :]


def _with_inputs(
    request: InferenceRequest,
    model_name: str,
    version: int | None,
    request_id: str,
    inputs: list[Tensor] | None,
    packed: PackedTensors | None,
) -> InferenceRequest:
    return InferenceRequest(
        model_name,
        version,
        request_id=request_id,
        inputs=inputs,
        packed=packed,
        requested_outputs=request.requested_outputs,
        parameters=dict(request.parameters) if request.parameters else None,
        correlation_id=request.correlation_id,
        sequence_flags=request.sequence_flags,
        priority=request.priority,
        timeout_us=request.timeout_us,
        classes=request.classes,
    )
