"""How a call reaches the outside."""
