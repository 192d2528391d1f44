"""Training runs: pre-training, meta-training on episodes, their logs and reports."""
