"""Classifiers that exist: found, cached, expired."""
