"""The file tier: log-structured segments, bounded, checksummed, safe to kill at any moment.

``store`` is the public face; ``format`` is what lies on disk.
"""

from warmtier.store.file.store import Durability, FileStore, engine_directory

__all__ = ["Durability", "FileStore", "engine_directory"]
