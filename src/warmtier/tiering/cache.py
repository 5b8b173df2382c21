"""``TieredCache``: which chunk is where, what to load, what to store, what to give up. Sans-IO."""
