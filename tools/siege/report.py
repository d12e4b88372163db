"""Results as lines for whoever waits, and as a table in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tools.siege.attacks import attack_named
from tools.siege.honest_client import KINDS, PAUSE
from tools.siege.runner import Result

HEALTH, INFERENCE = KINDS[:2], KINDS[2:]
_MOST_ENDINGS = 3


def line(result: Result) -> str:
    """One line of progress."""
    return (
        f"{result.attack:32} {result.transport:5} {result.connections:3}  "
        f"health {quantiles([result], HEALTH):>18} ms  inference {quantiles([result], INFERENCE):>18} ms  "
        f"machine {_ms(result.latencies[PAUSE].worst_s):>4}  failed {len(result.failures):3}  "
        f"MiB {result.memory_before_bytes >> 20:4} {result.memory_peak_bytes >> 20:5} {result.memory_after_bytes >> 20:5}  "
        f"CPU {result.cpu_s:5.1f} s, waited {result.waited_s:4.1f} s  sent {result.attacker.sent_bytes >> 20:5} MiB  "
        f"{endings([result])}  {'; '.join(result.faults) or 'held'}"
    )


def quantiles(results: Sequence[Result], kinds: Sequence[str]) -> str:
    """Median, 99 % and worst in milliseconds, each the largest of all results and kinds."""
    latencies = [result.latencies[kind] for result in results for kind in kinds]
    return " / ".join(
        _ms(max((value for value in values if value is not None), default=None))
        for values in (
            [latency.median_s for latency in latencies],
            [latency.p99_s for latency in latencies],
            [latency.worst_s for latency in latencies],
        )
    )


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.1f}" if seconds < 0.01 else f"{seconds * 1000:.0f}"


def endings(results: Sequence[Result]) -> str:
    """What most of the attackers' connections came to, and what the most frequent answer was."""
    ended: Counter[str] = Counter()
    for result in results:
        ended.update(result.attacker.ended)
    return ", ".join(f"{count} × {how}" for how, count in ended.most_common(_MOST_ENDINGS))


def markdown(results: Sequence[Result]) -> str:
    """A row for each attack, over all transports and numbers of connections."""
    lines = [
        "| attack | health: median / p99 / worst, ms | inference: median / p99 / worst, ms | failed | peak, MiB "
        "| CPU of the server | how its connections ended | held |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(result.attack for result in results):
        of_attack = [result for result in results if result.attack == name]
        cells = [
            f"`{name}`",
            quantiles(of_attack, HEALTH),
            quantiles(of_attack, INFERENCE),
            str(sum(len(result.failures) for result in of_attack)),
            str(max(result.memory_peak_bytes for result in of_attack) >> 20),
            f"{max(result.cpu_s for result in of_attack):.1f} s",
            endings(of_attack).replace("|", "\\|"),
            "no" if any(result.faults for result in of_attack) else "yes",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def catalogue(names: Sequence[str]) -> str:
    """The attacks: name, reference, sentence."""
    found = [attack_named(name) for name in names]
    return "\n".join(f"{attack.name:32} {attack.reference:28} {attack.sentence}" for attack in found)
