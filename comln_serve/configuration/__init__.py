"""The settings, and the flags, variables and file they are read from."""
