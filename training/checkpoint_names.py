"""Names of a run's files in its folder."""

LAST, BEST, PRETRAINING = "last.pt", "best.pt", "pretraining.pt"
LOG = "log.jsonl"
DATA = "data.sha256"

UNMEASURED = (
    "this run has not come to its first measurement yet, after which it has one (validation.every in its recipe)"
)
NO_RUN = "name the folder that fit got as --out"
