"""What only a machine with a GPU can say, in ten minutes and without a network: ``python -m benchmarks.gpu``."""
