"""Scores and reports from records alone."""
