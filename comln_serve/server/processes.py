"""How many processes the server is to have."""

import os

from comln_serve.configuration.settings import Settings
from comln_serve.errors import StartupError
from comln_serve.machine import may_have_gpu, suitable_workers


def processes(settings: Settings) -> tuple[int, bool]:
    """How many processes serve, and whether one more embeds for them.

    Raises:
        StartupError: this system cannot do that.
    """
    mode = settings.embedding_process
    gpu = settings.provider in ("auto", "cuda") and may_have_gpu()
    can_share = hasattr(os, "memfd_create")
    shares = can_share and (mode == "on" or (mode == "auto" and gpu))
    if settings.workers == "auto":
        # Without a process that embeds, each would have the networks, and buffers, in the GPU's memory.
        workers = 1 if gpu and not shares else suitable_workers(embedder=shares)
    else:
        workers = settings.workers
    if workers > 1 and not hasattr(os, "fork"):
        raise StartupError("several workers need a system that can fork, such as Linux; start with --workers 1")
    if mode == "on" and not can_share:
        raise StartupError("--embedding-process on needs Linux; leave it out")
    return workers, shares and workers > 1
