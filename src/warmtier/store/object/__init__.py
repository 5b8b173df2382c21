"""Chunks in object storage: S3, Google Cloud Storage, Azure, a shared directory.

``store`` is the ``ObjectStore``; it packs chunks into immutable objects (``filling``, ``uploader``), tells others by
manifests (``publisher``), learns from theirs (``follower``), reads ranges (``reader``) and removes what has expired
(``collector``). ``index`` says where a chunk is, ``format`` and ``names`` what lies in the bucket, ``client`` talks.
"""
