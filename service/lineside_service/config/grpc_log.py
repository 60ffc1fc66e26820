"""What gRPC's own core may write to stderr, which no logger of ours sees."""

from __future__ import annotations

import os


def keep_grpc_quiet() -> None:
    """Silence gRPC's C core unless GRPC_VERBOSITY says something; only of use before grpc is imported.

    Its lines are neither JSON nor ours; whatever an operator has to know, the service says itself.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # noqa: TID251 - config/ is where the environment is read
