"""`python -m lineside.cli`: the same as `lineside`."""

from __future__ import annotations

from lineside.cli import main

main()
