"""Anything at all, where text or bytes come in from outside: only documented errors come out."""
