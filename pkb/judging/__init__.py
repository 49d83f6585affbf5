"""Judging a candidate: its phases, and the explanation of what failed."""
