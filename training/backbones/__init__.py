"""Embedding networks f_Phi, one per file."""
