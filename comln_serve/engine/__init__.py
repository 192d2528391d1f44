"""The engine: models, adaptation and prediction, independent of HTTP."""
