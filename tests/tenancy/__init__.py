"""Two tenants in one store, each doing what it likes, under the same names: neither learns of the other.

A tenant's *program* is random, but it depends only on its seed and on what the tenant has been told. So the
same program is run twice, in a store of its own and in one that it shares, and everything that it was told
must be the same: by id, key, group, workflow, list, count, claim, error text. `test_backends` does so with
the verbs of a backend, `test_clients` with bound clients, their waiters and handlers.
"""
