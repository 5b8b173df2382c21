"""warmtier: KV cache that survives eviction."""

__version__ = "0.1.0"
