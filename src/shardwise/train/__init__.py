"""The PyTorch runtime: reads a plan, trains by it, and writes what it measured. It never predicts."""
