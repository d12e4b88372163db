"""pytriton-lite: a pip-installable server for Triton Python models.

Importing this package imports nothing else: workers start under the model's interpreter, where only numpy is certain.
"""

__version__ = "0.1.0"
