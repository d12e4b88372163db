"""The command ``pytriton-lite infer``: a client of v2 servers in the terminal (docs/infer.md)."""
