"""The error of all backbones."""


class BackboneError(ValueError):
    """A network that cannot be built, or input that it does not take; the message says what to do."""
