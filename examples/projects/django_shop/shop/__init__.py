"""Orders are placed on a page, and packed and confirmed by tasks."""
