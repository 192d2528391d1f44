"""Names of a run's checkpoints in its folder."""

LAST, BEST = "last.pt", "best.pt"
