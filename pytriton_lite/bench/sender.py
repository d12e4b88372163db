"""The program of a process that loads a server: ``python -m pytriton_lite.bench.sender FD``, started by `fleet`.

It reads a plan, then orders; an order is carried out until the next message comes. When the other end is closed, it ends.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from pytriton_lite.bench.calls import Plan
from pytriton_lite.bench.load import Load
from pytriton_lite.bench.orders import Failed, Order, Stopped, Window
from pytriton_lite.client.errors import ClientError
from pytriton_lite.core import prctl

_TIMER_SLACK_NS = 1000
"""The kernel may wake a process 50 us late otherwise, which an open loop would count as the server's."""


def serve(connection: Connection) -> None:
    """Carry out orders until the other end is closed."""
    try:
        plan = connection.recv()
        assert isinstance(plan, Plan)
        while True:
            order = connection.recv()
            if isinstance(order, Order):
                _carry_out(connection, plan, order)
    except (EOFError, OSError):
        pass


def _carry_out(connection: Connection, plan: Plan, order: Order) -> None:
    def on_window(window: Window) -> None:
        connection.send(window)

    try:
        Load(plan, order, on_window, connection.poll).run()
    except ClientError as error:
        connection.send(Failed(str(error)))
    connection.send(Stopped())


def main(arguments: list[str]) -> int:
    """Serve the descriptor that is named."""
    prctl.set_timer_slack(_TIMER_SLACK_NS)
    with Connection(int(arguments[0])) as connection:
        serve(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
