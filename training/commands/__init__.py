"""The commands of `comln-train`: each is a module with `add_arguments`, its options, and `run`, calls and output."""
