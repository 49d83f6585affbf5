"""`solution` is a number."""

solution = 3
