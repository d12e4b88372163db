"""The backend ``pytorch``: a folder whose model.py workers import by path. It needs PyTorch, of the user's choice."""
