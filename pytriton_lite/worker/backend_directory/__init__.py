"""The last entry of a model's ``sys.path``, as Triton's own is the folder of its Python backend (model API, section 1.2).

A worker has ``pb_utils`` in place before it imports a model. The modules here are for processes that a model starts and that
import its model.py once more, as multiprocessing's ``spawn`` and ``forkserver`` do: they are given the path, and nothing else.
"""
