"""Scenarios on real servers: PostgreSQL on this machine always, containers where a Docker engine answers."""
