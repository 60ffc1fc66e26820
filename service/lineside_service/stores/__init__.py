"""What is remembered: memory and SQLite, one conformance suite over both."""
