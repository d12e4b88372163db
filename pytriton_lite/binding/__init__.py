"""Models that are functions or classes of a program, in place of folders (docs/bind.md).

specification   what is said of a function: `model`, tensors, batching; and what the server is told, a configuration
decorators      from requests to arguments: `batch`, `first_value`, …
adapter         a function as the model that a worker runs: requests in, responses out, with checks
in_process      instances that are threads of the program
template        a process that is forked from the program, with the function in it, and forks workers
"""
