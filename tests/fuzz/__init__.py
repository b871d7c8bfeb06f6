"""Arbitrary text and bytes from outside: only documented errors come out."""
