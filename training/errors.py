"""Errors that the person who gave the command can correct; the message says how."""


class BackboneError(ValueError):
    """A network that cannot be built, or input that it does not take."""


class CheckpointError(ValueError):
    """A run that cannot be resumed, measured or exported."""


class ExportError(RuntimeError):
    """A bundle cannot be made from a run, or the exported graph computes other embeddings."""
