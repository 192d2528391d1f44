"""This server beside others that serve the same network: one job, one load, one run."""
