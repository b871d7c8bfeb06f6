"""Run: claim, dispatch, run, decide, settle: everything one running worker does."""
