"""Lineside: runs tool calls with deadlines, retries, idempotency keys and a reason for every decision."""
