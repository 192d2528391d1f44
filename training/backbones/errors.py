"""What is wrong with a network somebody asked for."""


class BackboneError(ValueError):
    """A network that cannot be made, or cannot take its input; the message says what to do."""
