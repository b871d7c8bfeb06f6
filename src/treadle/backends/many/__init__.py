"""Many: one backend over several stores, each tenant, or each root, in one of them. See docs/many-stores.md.

Begin with `places` (which store has a tenant) and `roots` (which one has a root), then `member` (one store as
this process sees it), `claim` and `view`. Files are named as in the other backends; `merge` makes one answer
of several, `orders` keeps the copies of orders alike. `mover` moves a tenant, `rebalance` says which
should, `adopted` has the leases that go along. It imports what all backends import, and no other backend.
"""

from .backend import ManyStores

__all__ = ["ManyStores"]
