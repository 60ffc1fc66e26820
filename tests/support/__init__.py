"""What the tests stand on: virtual time, seeded task order, cancellation at every await, a log of effects."""
