"""Upkeep: prune ended items, redrive dead ones, report a backlog."""
