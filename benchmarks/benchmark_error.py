"""The one error of the benchmark: a sentence for the person who started it."""


class BenchmarkError(Exception):
    """A measurement could not be made, or would have been wrong."""
