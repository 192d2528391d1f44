"""Offline trainer: meta-learns embedding, start and amount of adaptation; exports bundles."""
