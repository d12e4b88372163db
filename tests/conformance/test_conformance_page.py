"""docs/conformance.md says what the rows say."""

from __future__ import annotations

from tests.conformance.conformance_page import PAGE, page


def test_the_page_is_made_of_the_rows() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.conformance.conformance_page"
