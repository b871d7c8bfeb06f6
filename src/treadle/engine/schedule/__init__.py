"""Schedule: what recurs, and how each occurrence fires once."""
