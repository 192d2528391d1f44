"""The commands of `comln-train`: their options, the calls, and the output."""
