"""Pages for people on the HTTP port: the console at ``/`` and the description of the API at ``/docs``.

`lines` keeps what the log has said lately, `app` answers what the pages ask for, ``static`` has the pages themselves: HTML, CSS
and modules of JavaScript as they are written, without a build and without anything from another host. The server's part is
imported when the first page is asked for.
"""
