"""The compiled half of Triton's ``pb_utils``, which is the same module here."""

import triton_python_backend_utils  # noqa: F401  # puts itself in the place of both
