"""From a problem to attempts of a model: prompts, extraction of code, turns, and runs that can be resumed."""
