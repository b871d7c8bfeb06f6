"""Two tenants in one store, with the same names, each running a random program. Neither sees the other.

A tenant's *program* is random, but it depends only on its seed and on the answers it gets. The same program
runs twice, in a store of its own and in a shared one. All its answers must be the same: by id, key, group,
workflow, list, count, claim and error text. `test_backends` calls the verbs of a backend, `test_clients`
calls bound clients with their waiters and handlers.
"""
