"""A shop: orders are placed over HTTP, and charged, reserved and shipped by workers.

| module | what it has |
| --- | --- |
| `models` | the tables, and `Session` |
| `bank` | a client of the bank's API |
| `fulfilment` | the work: charge, reserve, ship, and what makes up for a failure |
| `books` | the work of every night |
| `orders` | an order and its work, in one transaction |
| `api` | the routes |
| `main` | what `uvicorn` and `treadle worker` start |
| `pretend_bank` | stands in for the bank |
"""
