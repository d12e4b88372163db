"""What the log takes."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton_lite.core.log_settings import LogSettings, stored_level

NOTHING: dict[str, Any] = {"info": False, "warning": False, "error": False, "verbose_level": 0}


@pytest.mark.parametrize(
    ("wanted", "bit"), [({"info": True}, 0), ({"warning": True}, 1), ({"error": True}, 2), ({"verbose_level": 1}, 3)]
)
def test_each_level_of_a_models_logger_has_its_bit(wanted: dict[str, Any], bit: int) -> None:
    assert LogSettings(**NOTHING).levels == 0
    assert LogSettings(**{**NOTHING, **wanted}).levels == 1 << bit


def test_at_first_everything_but_verbose_lines_is_wanted() -> None:
    assert LogSettings().levels == 0b0111


@pytest.mark.parametrize(
    ("number", "kept"), [(0, 0), (7, 7), ((1 << 31) - 1, (1 << 31) - 1), (1 << 31, 0), (-1, 0), ((1 << 32) + 5, 5)]
)
def test_a_verbosity_is_kept_in_32_bits_with_a_sign(number: int, kept: int) -> None:
    assert stored_level(number) == kept
