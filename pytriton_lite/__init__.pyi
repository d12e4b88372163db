from pytriton_lite.embedding import InferenceError as InferenceError
from pytriton_lite.embedding import Server as Server

__version__: str
INTERPRETED_VARIABLE: str
