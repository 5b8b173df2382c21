"""Chunks in an existing distributed store: Valkey or Redis (``valkey``), Mooncake Store (``mooncake``)."""
