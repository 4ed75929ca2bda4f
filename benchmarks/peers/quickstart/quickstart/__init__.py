"""The training of the benchmark, written as Flower's PyTorch quickstart."""
