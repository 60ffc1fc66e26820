"""Why an address cannot be listened on, and which setting cures it."""

from __future__ import annotations

import socket

GRPC_CURE = "choose another with server.listen or --listen"
ADMIN_CURE = 'choose another with admin.listen or --admin-listen ("off" = none)'


def obstacle(listen: str) -> str:
    """What the system says to this host:port, empty when it can be had at this moment."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def grpc_words(listen: str) -> str:
    """For an address that gRPC could not listen on; gRPC itself tells no reason."""
    reason = obstacle(listen) or "gRPC refuses it; GRPC_VERBOSITY=ERROR makes it say why"
    return f"cannot listen on {listen}: {reason}; {GRPC_CURE}"


def admin_words(listen: str, reason: str, grpc_listen: str) -> str:
    """For the admin address, with the gRPC one, which is tried after it, when that cannot be had either."""
    words = f"cannot listen on {listen} (admin): {reason}; {ADMIN_CURE}"
    return f"{words}\n{' ' * 18}and {grpc_words(grpc_listen)}" if obstacle(grpc_listen) else words
