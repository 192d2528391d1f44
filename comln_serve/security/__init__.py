"""API keys: making, parsing, verifying and rate-limiting them. No HTTP here."""

from comln_serve.security.keys import TENANT_PATTERN, ApiKey, KeyRing, Presented, Scope, is_right, make_key, parse_key
from comln_serve.security.rate_limit import RateLimiter

__all__ = [
    "TENANT_PATTERN",
    "ApiKey",
    "KeyRing",
    "Presented",
    "RateLimiter",
    "Scope",
    "is_right",
    "make_key",
    "parse_key",
]
