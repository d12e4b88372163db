"""Schedulers: which requests run together, in which order, and when.

Nothing here awaits or reads a clock: time comes in as ``now_ns``.
"""
