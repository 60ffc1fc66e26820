"""Pure decisions: values in, values out. No asyncio, clock, randomness, I/O, grpc or opentelemetry."""
