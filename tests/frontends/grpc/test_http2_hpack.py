"""Header blocks, read beside the library hpack: what it reads is read the same, and what it refuses is refused."""

from __future__ import annotations

from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.control_methods import ControlMethods
from pytriton_lite.frontends.grpc.http2_call import Endpoint
from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.http2_headers import HeaderBlocks
from pytriton_lite.frontends.grpc.http2_hpack import TABLE_BYTES, HeaderDecoder
from pytriton_lite.frontends.grpc.http2_wariness import Wariness
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.servicer import Servicer
from tests.frontends.grpc.grpc_fakes import FakeServer
from tools.decoder_fuzz.targets import read_header_block

_MOST = 64 << 10

_FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"content-length", b":path", b":method", b"n" * 200]),
        st.one_of(st.sampled_from([b"POST", b"1", b"v" * 700]), st.binary(max_size=300)),
        st.booleans(),
    ),
    max_size=8,
)


def _encode(encoder: hpack.Encoder, fields: list[tuple[bytes, bytes, bool]], *, is_huffman: bool) -> bytes:
    """The third item makes a field a literal that is not added."""
    return bytes(encoder.encode(fields, huffman=is_huffman))


@given(
    blocks=st.lists(st.tuples(_FIELDS, st.booleans(), st.sampled_from([None, 0, 100, 1000, TABLE_BYTES])), max_size=6)
)
def test_blocks_of_a_connection_are_read_as_the_library_reads_them(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    encoder, library, decoder = hpack.Encoder(), hpack.Decoder(_MOST), HeaderDecoder(_MOST)
    for fields, is_huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        block = _encode(encoder, fields, is_huffman=is_huffman)
        before = list(library.header_table.dynamic_entries), library.header_table_size
        assert list(library.decode(block, raw=True)) == [(name, value) for name, value, _ in fields]
        read, keeps_table = decoder.decode(block)
        assert read == [(name, value) for name, value, _ in fields]
        if keeps_table:
            assert before == (list(library.header_table.dynamic_entries), library.header_table_size)
            assert decoder.decode(block) == (read, True)


@given(
    fields=_FIELDS,
    is_huffman=st.booleans(),
    cut=st.integers(0, 300),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
)
def test_broken_blocks_are_refused_where_the_library_refuses_them(
    fields: list[tuple[bytes, bytes, bool]], is_huffman: bool, cut: int, changes: list[tuple[int, int]]
) -> None:
    block = bytearray(_encode(hpack.Encoder(), fields, is_huffman=is_huffman))
    for at, octet in changes:
        block[at : at + 1] = bytes((octet,))
    read_header_block(bytes(block[: max(len(block) - cut, 0)]))


@given(block=st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_as_by_the_library(block: bytes) -> None:
    read_header_block(block)


# RFC 7541, appendix C, requests with Huffman's code (C.4) on one connection.
@pytest.mark.parametrize("through", [1, 2, 3])
def test_requests_of_the_rfc(through: int) -> None:
    base = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    requests = [
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", base),
        ("8286 84be 5886 a8eb 1064 9cbf", [*base, (b"cache-control", b"no-cache")]),
        (
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            [
                (b":method", b"GET"),
                (b":scheme", b"https"),
                (b":path", b"/index.html"),
                (b":authority", b"www.example.com"),
                (b"custom-key", b"custom-value"),
            ],
        ),
    ]
    decoder = HeaderDecoder(_MOST)
    for block, expected in requests[:through]:
        assert decoder.decode(bytes.fromhex(block)) == (expected, False)


@pytest.mark.parametrize(
    ("block", "of_what"),
    [
        ("80", "entry 0"),
        ("be", "the first entry of an empty dynamic table"),
        ("7f ff ff ff ff 07 00", "a name from an entry that there is not"),
        ("ff", "an integer without its end"),
        ("ff 80 80 80 80 80 00", "an integer of six octets"),
        ("00", "a literal without its name"),
        ("00 01 61", "a literal without its value"),
        ("00 01 61 05 62", "a string that is longer than the block"),
        ("00 01 61 81 ff", "eight bits of padding"),
        ("00 01 61 81 00", "padding of zeros"),
        ("00 01 61 84 ff ff ff ff", "the end of a string within it"),
        ("82 20", "a change of the table's size behind a field"),
        ("3f e2 1f", "a table of 4,097 bytes"),
    ],
)
def test_block_that_the_rfc_forbids_is_a_compression_error(block: str, of_what: str) -> None:
    with pytest.raises(ConnectionFault, match=r"^header block cannot be decoded$") as raised:
        HeaderDecoder(_MOST).decode(bytes.fromhex(block))
    assert raised.value.code is Http2Error.COMPRESSION_ERROR, of_what


def test_list_that_grows_beyond_its_limit_is_refused_as_soon_as_it_does() -> None:
    decoder = HeaderDecoder(1000)
    add = b"\x40\x01a\x7f\xe1\x02" + b"v" * 480  # 480 and 33 of 1,000 bytes
    assert decoder.decode(add) == ([(b"a", b"v" * 480)], False)
    with pytest.raises(ConnectionFault, match=r"^header list too large$") as raised:
        decoder.decode(b"\xbe\xbe" + b"\x80")  # what is wrong behind it is not looked at
    assert raised.value.code is Http2Error.ENHANCE_YOUR_CALM


def test_entry_larger_than_the_table_empties_it() -> None:
    decoder = HeaderDecoder(_MOST)
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.decode(b"\xbe") == ([(b"a", b"b")], True)
    decoder.decode(b"\x3f\x09" + b"\x40\x01a\x0a" + b"v" * 10)  # a table of 40 bytes, an entry of 43
    with pytest.raises(ConnectionFault):
        decoder.decode(b"\xbe")


def test_head_is_read_once_until_the_table_changes() -> None:
    engine: Any = FakeServer()
    options = GrpcOptions()
    endpoint = Endpoint(Servicer(engine, ControlMethods(engine)), CallsInFlight(), options)
    blocks = HeaderBlocks(endpoint, Wariness(options, lambda: 0.0))
    encoder = hpack.Encoder()
    fields = [
        (b":method", b"POST", True),
        (b":scheme", b"http", True),
        (b":path", b"/inference.GRPCInferenceService/ModelInfer", True),
        (b"content-type", b"application/grpc", True),
    ]
    block = _encode(encoder, fields, is_huffman=True)
    first = blocks.head(block)
    assert first is not None
    assert first.route is endpoint.infer_route
    # Behind a request with an id of its own, and behind one that is too long to be remembered.
    for value in (b"00-1", b"v" * 1000):
        other = blocks.head(_encode(encoder, [*fields, (b"traceparent", value, True)], is_huffman=True))
        assert other is not None
        assert other.metadata[b"traceparent"] == value
        assert blocks.head(block) is first
    other = blocks.head(_encode(encoder, [*fields, (b"traceparent", b"00-2", False)], is_huffman=True))
    assert other is not None
    assert other.metadata[b"traceparent"] == b"00-2"
    assert blocks.head(block) is not first
    assert blocks.head(block) == first
