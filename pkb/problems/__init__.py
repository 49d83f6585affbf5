"""The problems, one folder each, and what they are made of. Knows nothing of processes, clocks or GPU models."""
