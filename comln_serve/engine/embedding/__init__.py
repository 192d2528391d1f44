"""Turns image files into embeddings, the same way on a CPU, a GPU and Ray Serve's replicas.

    Engine -> Decoders (threads) -> Batcher of the model (threads) -> Job.wait

Each decoded image goes to its model's batcher, whose threads run the network on one image (CPU), on
a batch (GPU) or on another machine (Ray Serve).
"""
