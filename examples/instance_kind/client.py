"""Find out which instances a model has, by asking until every one has answered."""

from __future__ import annotations

import argparse
import sys

import tritonclient.http as http

EXPECTED = {
    "cpu_0": ("CPU", "cpu"),
    "cpu_1": ("CPU", "cpu"),
    "instance_kind_1_0": ("MODEL", "of my own choice"),
}
ROUNDS = 50


def main(url: str) -> None:
    seen: dict[str, tuple[str, str]] = {}
    with http.InferenceServerClient(url, concurrency=6) as client:
        for _ in range(ROUNDS):
            # Six at once: no instance can take them all.
            for call in [client.async_infer("instance_kind", []) for _ in range(6)]:
                result = call.get_result()
                instance, kind, device = (result.as_numpy(name)[0].decode() for name in ("INSTANCE", "KIND", "DEVICE"))
                seen[instance] = (kind, device)
            if len(seen) == len(EXPECTED):
                break
    for instance, (kind, device) in sorted(seen.items()):
        print(f"{instance}: kind {kind}, device {device}")
    if seen != EXPECTED:
        sys.exit(f"wrong answer: expected {EXPECTED}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
