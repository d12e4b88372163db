"""Ask a model of texts with plain HTTP and JSON: for a whole text, for one word by word, and for one that we do not read to
its end.

Nothing but the standard library is needed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

TIMEOUT_S = 60


def generate(url: str, **members: Any) -> dict[str, Any]:
    """Ask for the whole text. Raises urllib.error.HTTPError for a refusal."""
    body = json.dumps(members).encode()
    with urllib.request.urlopen(f"http://{url}/v2/models/writer/generate", body, timeout=TIMEOUT_S) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def words(url: str, **members: Any) -> Iterator[str]:
    """Ask for the text word by word. Whoever stops reading and closes this generator closes the connection."""
    connection = http.client.HTTPConnection(url, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v2/models/writer/generate_stream", json.dumps({"stream": True, **members}))
        for line in connection.getresponse():
            if line.startswith(b"data: "):  # an event is this line and an empty one
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    sys.exit(f"wrong answer: {event['error']}")
                yield event["text_output"]
    finally:
        connection.close()


def main(url: str) -> None:
    answer = generate(url, text_input="once", max_tokens=3)
    print(f"generate: {answer['text_output']}")
    if answer["text_output"] != "once upon a time":
        sys.exit(f"wrong answer: expected 'once upon a time', got {answer}")

    streamed = list(words(url, text_input="once", max_tokens=6))
    print(f"generate_stream: {' + '.join(streamed)}")
    if streamed != ["upon", "a", "time", "there", "was", "a"]:
        sys.exit("wrong answer: expected upon, a, time, there, was, a")

    # A text without an end. The model writes one text at a time: it comes to the next because it sees that we have gone.
    endless = words(url, text_input="once", max_tokens=10**9)
    read = [next(endless) for _ in range(3)]
    endless.close()
    answer = generate(url, text_input="time", max_tokens=2)
    print(f"left behind {' '.join(read)}, and asked for the next: {answer['text_output']}")
    if answer["text_output"] != "time there was":
        sys.exit(f"wrong answer: expected 'time there was', got {answer}")

    try:
        generate(url, text_input="once", max_tokens=0)
    except urllib.error.HTTPError as error:
        with error:
            print(f"max_tokens 0: status {error.code}, {json.load(error)['error']}")
    else:
        sys.exit("wrong answer: expected an error for max_tokens 0")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
