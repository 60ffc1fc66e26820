"""What a caller surely has left of its deadline, which `grpc-timeout` tells only roughly.

Measured with gRPC's C core (the library under Python, C++, Ruby and PHP clients): it writes three digits,
rounded up, so that `timeout=10` arrives as 10.1 s and `timeout=100` as 101 s; and it sends an earlier
timeout of the same connection again if that is up to 3 % longer, because it is in the header table already.
An answer made to fit what arrived would come after its caller has gone with a bare DEADLINE_EXCEEDED. So
the step is taken off, and the 3 % as far as they are short; other clients write what they mean. Decision 6 in
docs/adr tells what that costs.
"""

from __future__ import annotations

from typing import Final

_STEPS: Final = ((1.0, 0.001), (10.0, 0.01), (100.0, 0.1), (1000.0, 1.0))
REUSE_SHARE: Final = 0.03
MAX_REUSE_S: Final = 0.3
"""Most that is taken off for a timeout sent again: nobody should lose seconds of a long call to it."""

C_CORE_MARK: Final = "grpc-c/"
"""What the user agent of the C core's clients has in it."""


def surely_left_s(seen_s: float, *, is_c_core: bool) -> float:
    """Seconds that are left for sure when the transport shows `seen_s`; may be negative."""
    if not is_c_core:
        return seen_s
    reused_s = min(REUSE_SHARE * seen_s, MAX_REUSE_S)
    for below, step in _STEPS:
        if seen_s <= below:
            return seen_s - reused_s - step
    return seen_s * 0.99 - reused_s
