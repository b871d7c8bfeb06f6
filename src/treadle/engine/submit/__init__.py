"""Submit: turn a Work and its options into an Item, and store it. Many callers share one write."""
