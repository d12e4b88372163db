"""A metrics page, read as strictly as ``promtool check metrics`` and a person with a diff in mind would read it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (.*)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.+)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\\\|\\"|\\n)*)"(?:,|$)')
_SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_count", "_sum", "_bucket"),
    "summary": ("_count", "_sum", ""),
}
_LAST = {("histogram", "_bucket"): "le", ("summary", ""): "quantile"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class PageFamily:
    name: str
    help: str
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)
    """By (name with its suffix, labels), in the order of the page."""


def read_page(text: str) -> dict[str, PageFamily]:
    """The families by name. Fails at the first line that is not as it should be."""
    families: dict[str, PageFamily] = {}
    family: PageFamily | None = None
    assert not text or text.endswith("\n")
    for line in text.splitlines():
        if found := _HELP.fullmatch(line):
            assert family is None or family.samples, f"a family without series before: {line}"
            assert found[1] not in families, f"a family in two places: {line}"
            family = families[found[1]] = PageFamily(found[1], found[2])
        elif found := _TYPE.fullmatch(line):
            assert family is not None and family.name == found[1], f"not behind its HELP: {line}"
            assert not family.kind and not family.samples, f"not in front of the series: {line}"
            family.kind = found[2]
        else:
            assert family is not None and family.kind, f"not behind HELP and TYPE: {line}"
            _add_sample(family, line)
    for known in families.values():
        if known.kind == "histogram":
            _check_histogram(known)
    return families


def _add_sample(family: PageFamily, line: str) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found, f"no series: {line}"
    name, text, value = found.groups()
    suffix = name.removeprefix(family.name)
    assert name.startswith(family.name) and suffix in _SUFFIXES[family.kind], f"not of {family.name}: {line}"
    labels = _labels(text or "", line)
    names = [key for key, _ in labels]
    last = _LAST.get((family.kind, suffix))
    if last is not None:
        assert names and names.pop() == last, f"expected {last} as the last label: {line}"
    assert names == sorted(set(names)), f"labels are not in alphabetical order: {line}"
    assert not {"le", "quantile"} & set(names), f"a label of another type: {line}"
    assert (name, labels) not in family.samples, f"twice: {line}"
    number = float(value)
    if family.kind in ("counter", "histogram"):
        assert number >= 0 and math.isfinite(number), f"a counter of that value: {line}"
    family.samples[name, labels] = number


def _labels(text: str, line: str) -> Labels:
    labels: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        assert found, f"labels cannot be read: {line}"
        labels.append((found[1], re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), found[2])))
        at = found.end()
    return tuple(labels)


def _check_histogram(family: PageFamily) -> None:
    buckets: dict[Labels, list[tuple[float, float]]] = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            buckets.setdefault(labels[:-1], []).append((float(labels[-1][1]), value))
    for labels, found in buckets.items():
        assert found == sorted(found) and found[-1][0] == math.inf, f"{family.name}{labels}: {found}"
        counts = [count for _, count in found]
        assert counts == sorted(counts), f"{family.name}{labels} does not count upwards: {found}"
        assert counts[-1] == family.samples[f"{family.name}_count", labels]
