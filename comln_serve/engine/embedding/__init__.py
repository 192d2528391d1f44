"""From image files to embeddings, the same way on a CPU, on a GPU and on Ray Serve's replicas.

    Embedder.embed -> Decoders (threads) -> Batcher of the model (threads) -> Job.wait

Image by image: what has been decoded goes to its model's batcher, whose threads run the network on
one image (CPU), on a batch (GPU) or on another machine (Ray Serve).
"""
