"""What `lineside-service check` and `token` say; the commands themselves are in cli.py."""
