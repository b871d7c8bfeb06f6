"""Where items live: one package per store. See `treadle.backend` for what each of them does."""
