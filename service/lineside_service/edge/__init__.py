"""The wire: servicers, conversion, status mapping, identity, health, reflection, admin HTTP."""
