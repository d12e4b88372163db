"""Front ends in processes of their own before one engine (``--frontends N``).

```
              engine's process                                front end's process
  Acceptor ─▶ FrontEnds ─▶ FrontEndProcess ── connection ──▶  FrontEnd: listeners, as in one process
                           Peer            ◀─ call, reply ─▶  RemoteServer: what they use in place of `Server`
                           Control         ◀─ everything else ─  forwarded
                           ModelNews       ── what is served ─▶  RemoteModels
```

A front end has connections, TLS, protocols and codecs; the engine has the models, what waits for them, and everything that
controls or shows them. So requests of all front ends meet in one queue.
"""
