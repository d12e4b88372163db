"""All attacks, by name."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tools.siege import grpc_attacks, http_attacks, tls_attacks
from tools.siege.attack import Attack, Port, Step, attack


@attack("", Port.HTTP, sockets=0)
def no_attack(dice: random.Random) -> Iterator[Step]:
    """Nothing, to compare the others with."""
    return iter(())


ATTACKS: tuple[Attack, ...] = (no_attack, *grpc_attacks.ATTACKS, *http_attacks.ATTACKS, *tls_attacks.ATTACKS)
_BY_NAME = {attack.name: attack for attack in ATTACKS}


def attack_named(name: str) -> Attack:
    """Raises KeyError where there is none."""
    return _BY_NAME[name]
