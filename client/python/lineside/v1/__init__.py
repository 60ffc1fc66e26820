"""The wire contract `lineside.v1`, generated from protos/lineside/v1 by `make proto`."""
