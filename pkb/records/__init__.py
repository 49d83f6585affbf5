"""What is written down: verdicts, solutions, fingerprints, errors. Standard library and pydantic only."""
