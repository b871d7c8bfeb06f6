"""Submit: a Work and its options become an Item; many callers share one write."""
