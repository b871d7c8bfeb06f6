"""Run: everything that one running worker does, from claim to settlement. `runtime` puts it together."""
