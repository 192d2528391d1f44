"""API keys: making, parsing, verifying and rate-limiting them. No HTTP here."""
