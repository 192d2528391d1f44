"""Turns image files into embeddings, the same way on a CPU, a GPU and Ray Serve's replicas.

    Engine -> Decoders (threads) -> Batcher of the model (threads) -> Job, awaited or waited for

Each decoded image goes to its model's batcher, whose threads run the network on small batches (one on each core of a
CPU), on large ones (GPU) or on another machine (Ray Serve).
"""
