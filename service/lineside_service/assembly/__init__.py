"""Assembly: the one room that knows every concrete class; config in, a running service out."""
