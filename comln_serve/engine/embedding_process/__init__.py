"""One process embeds for all that serve (`--embedding-process`), so that a GPU holds each network once.

    Batcher of a process that serves -> SharedModel -> Unix socket, shared memory -> Embedder -> Batcher -> backbone

The processes that serve decode and classify. Each of their batches goes through a `Channel` to the process that embeds,
whose batchers join the batches of all.
"""
