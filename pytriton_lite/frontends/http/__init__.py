"""The KServe v2 protocol over HTTP: `server.http_app` makes the ASGI application."""
