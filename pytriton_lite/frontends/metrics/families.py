"""Families of one or a few series that are read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytriton_lite.core.custom_metrics import Family, Kind, Labels, Number


def gauge(name: str, help_text: str, value: float, labels: Labels = ()) -> Family:
    return Family(name, help_text, Kind.GAUGE, {labels: Number(value)})


def counter(name: str, help_text: str, value: float) -> Family:
    return Family(name, help_text, Kind.COUNTER, {(): Number(value)})


def labelled(name: str, help_text: str, kind: Kind, series: Iterable[tuple[Mapping[str, str], float]]) -> Family:
    return Family(name, help_text, kind, {tuple(sorted(labels.items())): Number(value) for labels, value in series})
