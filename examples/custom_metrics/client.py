"""Use a model that has metrics of its own, and read them on the server's page before and after."""

from __future__ import annotations

import argparse
import sys
import urllib.request

import numpy as np
import tritonclient.http as http

TEXTS = ["", "short", "a little longer", "käse"]
LABELS = 'model="metered",version="1"'
# By how much each series grows with TEXTS: lengths in bytes are 0, 5, 15 and 5.
GROWTH = {
    f'example_texts_total{{ascii="true",{LABELS}}}': 3,
    f'example_texts_total{{ascii="false",{LABELS}}}': 1,
    f'example_text_bytes_bucket{{{LABELS},le="1"}}': 1,
    f'example_text_bytes_bucket{{{LABELS},le="10"}}': 3,
    f'example_text_bytes_bucket{{{LABELS},le="100"}}': 4,
    f'example_text_bytes_bucket{{{LABELS},le="+Inf"}}': 4,
    f"example_text_bytes_sum{{{LABELS}}}": 25,
    f"example_text_bytes_count{{{LABELS}}}": 4,
}
LAST = f"example_last_text_bytes{{{LABELS}}}"


def page(url: str) -> dict[str, float]:
    """Return the value of each series on the page of metrics, by its name and labels as they are printed there."""
    with urllib.request.urlopen(f"http://{url}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {series: float(value) for series, value in pairs}


def main(url: str, metrics_url: str) -> None:
    before = page(metrics_url)
    with http.InferenceServerClient(url) as client:
        for text in TEXTS:
            tensor = http.InferInput("TEXT", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
            client.infer("metered", [tensor])
    after = page(metrics_url)

    for series, growth in GROWTH.items():
        # Before the first text a series may not be there yet.
        grown = after.get(series, 0) - before.get(series, 0)
        print(f"{series} +{grown:g}")
        if grown != growth:
            sys.exit(f"wrong answer: {series} grew by {grown:g}, expected {growth}")
    print(f"{LAST} {after[LAST]:g}")
    if after[LAST] != len(TEXTS[-1].encode()):
        sys.exit(f"wrong answer: {LAST} is {after[LAST]:g}, expected {len(TEXTS[-1].encode())}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    parser.add_argument("--metrics-url", default="localhost:8002", help="and of the metrics (default: %(default)s)")
    options = parser.parse_args()
    main(options.url, options.metrics_url)
