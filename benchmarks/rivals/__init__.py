"""Meta-learning algorithms in short reference code, one a file, on this project's networks and data.

An algorithm that adapts a head on embeddings is an `EmbeddingRival`, one that adapts the network itself a
`NetworkRival`; `listing.py` has them all, and `training.py` trains any of them within a budget of CPU time.
"""
