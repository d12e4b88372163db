"""A causal transformer of 110,000 weights, and the conversations that it has learnt by heart."""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.nn import functional

CONVERSATIONS = {
    "hello": "Hello! Ask me about tensors, models, batches or time.",
    "who are you": "I am a tiny transformer with two layers.",
    "what is a tensor": "A tensor is an array of numbers with a shape.",
    "what is a model": "A model is a function with many weights.",
    "what is a batch": "A batch is several requests that are executed together.",
    "why do you batch": "Because one large multiplication is faster than many small ones.",
    "what is a token": "A token is a piece of text that a model reads at once.",
    "what time is it": "It is time to write tests.",
    "tell me a story": "Once upon a time a request met a batch, and they were answered together.",
    "how are you": "I am well, and all my weights are finite.",
    "thank you": "You are welcome.",
    "goodbye": "Goodbye, and come again!",
}
USER, ASSISTANT, END, UNKNOWN, PADDING = "<user>", "<assistant>", "<end>", "<unknown>", "<padding>"
CONTEXT = 64
"""Words that the network looks back on."""
_WORDS = re.compile(r"<\w+>|\w+|[^\w\s]")


def split(text: str) -> list[str]:
    """The words and signs of *text*. What a user says is read in lower case, and without signs."""
    words, speaker = [], USER
    for word in _WORDS.findall(text):
        if word in (USER, ASSISTANT):
            speaker = word
        elif speaker == USER:
            word = word.lower()
            if not word.isalnum():
                continue
        words.append(word)
    return words


def conversation(question: str) -> list[str]:
    return [USER, *split(question), ASSISTANT, *split(f"{ASSISTANT} {CONVERSATIONS[question]}")[1:], END]


VOCABULARY = [PADDING, UNKNOWN, *sorted({word for question in CONVERSATIONS for word in conversation(question)})]
NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}


def encode(text: str) -> list[int]:
    return [NUMBERS.get(word, NUMBERS[UNKNOWN]) for word in split(text)]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mix = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_attention, self.from_attention = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        queries, keys, values = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.to_attention(self.before_attention(x)).chunk(3, dim=-1)
        )
        # Each word sees those before it, so padding behind a text changes nothing.
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.from_attention(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mix(self.before_mix(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of what comes behind each word: [rows, length] to [rows, length, vocabulary]."""
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        return self.last(self.blocks(x)) @ self.words.weight.T


def trained() -> Transformer:
    """The network, made from nothing in a second or two; the same each time."""
    torch.manual_seed(0)
    network = Transformer()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    words = padded([[NUMBERS[word] for word in conversation(question)] for question in CONVERSATIONS])
    for _ in range(120):
        scores = network(words[:, :-1])
        loss = functional.cross_entropy(
            scores.reshape(-1, len(VOCABULARY)), words[:, 1:].reshape(-1), ignore_index=NUMBERS[PADDING]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def padded(texts: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, texts))
    return torch.tensor([text + [NUMBERS[PADDING]] * (longest - len(text)) for text in texts])


class Writer:
    """The next words of several texts at once."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._network = trained()

    @torch.inference_mode()
    def next_words(self, texts: list[list[int]], temperatures: list[float], seeds: list[int]) -> list[int]:
        """The number of the word that comes behind each of *texts*: the likeliest, or one drawn at a temperature above 0."""
        texts = [text[-CONTEXT:] for text in texts]
        scores = self._network(padded(texts))
        chosen = []
        for row, text, temperature, seed in zip(scores, texts, temperatures, seeds):
            of_next = row[len(text) - 1]
            of_next[[NUMBERS[PADDING], NUMBERS[UNKNOWN]]] = -torch.inf
            if temperature <= 0:
                chosen.append(int(of_next.argmax()))
                continue
            generator = torch.Generator().manual_seed((seed + 7919 * len(text)) % (1 << 63))
            chosen.append(int(torch.multinomial((of_next / temperature).softmax(0), 1, generator=generator)))
        return chosen
