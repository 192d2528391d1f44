"""What operators see of requests: log lines, metrics, traces."""
