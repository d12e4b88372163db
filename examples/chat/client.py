"""Chat with tiny_chat by the openai package: one question, a conversation as a stream, and many at once."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

TIMEOUT_S = 60
QUESTIONS = {
    "Hello!": "Hello! Ask me about tensors, models, batches or time.",
    "What is a tensor?": "A tensor is an array of numbers with a shape.",
    "What is a batch?": "A batch is several requests that are executed together.",
    "Why do you batch?": "Because one large multiplication is faster than many small ones.",
    "Tell me a story.": "Once upon a time a request met a batch, and they were answered together.",
}


def ask(client: OpenAI, question: str) -> str:
    found = client.chat.completions.create(model="tiny_chat", messages=[{"role": "user", "content": question}])
    return found.choices[0].message.content


def stream(client: OpenAI, messages: list[dict[str, str]]) -> str:
    """Print the answer to *messages* as it comes, and what it took; return it."""
    pieces = []
    chunks = client.chat.completions.create(
        model="tiny_chat", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        if chunk.choices:
            pieces.append(chunk.choices[0].delta.content or "")
            print(pieces[-1], end="", flush=True)
        else:
            print(f"   ({chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out)")
    return "".join(pieces)


def main(url: str) -> None:
    with OpenAI(base_url=f"http://{url}/v1", api_key="none is needed", timeout=TIMEOUT_S, max_retries=0) as client:
        print(*(model.id for model in client.models.list()))
        told = [ask(client, "Hello!")]
        print(told[0])

        # A conversation is sent whole each time.
        messages: list[dict[str, str]] = []
        for question in ("What is a tensor?", "What is a batch?"):
            print(f"> {question}")
            messages.append({"role": "user", "content": question})
            told.append(stream(client, messages))
            messages.append({"role": "assistant", "content": told[-1]})
        expected = [QUESTIONS[question] for question in ("Hello!", "What is a tensor?", "What is a batch?")]

        # All at once: their words are computed together.
        many = list(QUESTIONS) * 3
        with ThreadPoolExecutor(len(many)) as pool:
            told += pool.map(lambda question: ask(client, question), many)
        expected += [QUESTIONS[question] for question in many]
        print(f"{len(many)} at once: {len(set(told))} different answers")

        cut = client.chat.completions.create(
            model="tiny_chat", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=4
        )
        told.append(f"{cut.choices[0].message.content} ({cut.choices[0].finish_reason})")
        expected.append("Once upon a time (length)")
        print(told[-1])
    if told != expected:
        wrong = [pair for pair in zip(told, expected) if pair[0] != pair[1]]
        sys.exit(f"wrong answers, and what was expected: {wrong}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
