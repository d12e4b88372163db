"""The backend ``transformers``: a folder whose model.py workers import by path. It needs transformers and PyTorch."""
