"""The commands of `comln-train`: options, what is called with them, what is printed."""
