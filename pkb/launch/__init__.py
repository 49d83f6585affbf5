"""Rank processes: started, given plans, timed, watched and ended. Knows nothing of what is correct or fast."""
