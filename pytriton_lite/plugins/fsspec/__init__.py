"""Repositories on S3, Google Cloud Storage, Azure and web servers, through fsspec.

The extras ``s3``, ``gs``, ``azure`` and ``https``.
"""
