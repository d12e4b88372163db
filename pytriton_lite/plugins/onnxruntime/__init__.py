"""The backend ``onnxruntime``: a folder whose model.py workers import by path. The extra ``onnxruntime``."""
