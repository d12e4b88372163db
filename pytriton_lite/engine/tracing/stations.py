"""The stations of a request under the names that Triton gives them (CLI spec, section 7); ns, 0 for those not reached."""

from __future__ import annotations

from collections.abc import Iterator

from pytriton_lite.core.timeline import Timeline

_FRONT_ENDS = {"http": ("HTTP_RECV", "HTTP_SEND"), "grpc": ("GRPC_WAITREAD", "GRPC_SEND")}


def front_end(timeline: Timeline) -> dict[str, int]:
    """Stations from the request's first byte to the answer's last one; none of a call that a model makes."""
    names = _FRONT_ENDS.get(timeline.protocol)
    if names is None:
        return {}
    receive, send = names
    return {
        f"{receive}_START": timeline.receiving_ns,
        f"{receive}_END": timeline.received_ns,
        "INFER_RESPONSE_COMPLETE": timeline.first_response_ns or timeline.answered_ns,
        f"{send}_START": timeline.sending_ns,
        f"{send}_END": timeline.sent_ns if timeline.sending_ns else 0,
    }


def start(timeline: Timeline) -> dict[str, int]:
    return {"REQUEST_START": timeline.accepted_ns, "QUEUE_START": timeline.enqueued_ns}


def earlier(timeline: Timeline) -> Iterator[tuple[str, int]]:
    """Stations of a request whose model has wanted it again, of the executions before its last one."""
    names = "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"
    for execution in timeline.earlier:
        yield from zip(names, execution)


def compute(timeline: Timeline) -> dict[str, int]:
    return {
        "COMPUTE_START": timeline.compute_start_ns,
        "COMPUTE_INPUT_END": timeline.inputs_ns,
        "COMPUTE_OUTPUT_START": timeline.executed_ns,
        "COMPUTE_END": timeline.compute_end_ns,
    }


def end(timeline: Timeline) -> dict[str, int]:
    """When the client of a request that waited gave it up.

    A front end in a process of its own notes that, and may have done so before the engine accepted the request.
    """
    end_ns = max(timeline.answered_ns, timeline.compute_end_ns)
    return {"REQUEST_END": end_ns or (max(timeline.sent_ns, timeline.accepted_ns) if timeline.accepted_ns else 0)}
