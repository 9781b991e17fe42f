"""A quickstart of Flower's kind: a small PyTorch network on the digits that every node has its own part of."""
