"""The command ``pytriton-lite bench``: a load tester for v2 servers (docs/bench.md).

    command ── settings ──▶ measuring ── Level, Window ──▶ sender, a process or several ── sockets ──▶ the server
                              │ windows until they are steady
                              ▼
                            report, plot

Senders know when a request was meant to begin and when its answer had come, and nothing of rates or percentiles; `measuring`
has those, and never touches a socket of the load.
"""
