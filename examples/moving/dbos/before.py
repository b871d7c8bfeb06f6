"""DBOS.

Tables: dbos migrate -s $STORE_URL
Worker: python before.py worker. Program: python before.py
"""

import os
import sys
import threading

from dbos import DBOS, DBOSClient

URL = os.environ.get("STORE_URL", "postgresql://127.0.0.1/shop").replace("postgresql:", "postgresql+psycopg:")


@DBOS.step(retries_allowed=True, max_attempts=4, interval_seconds=0.1)
def charge(order: int, cents: int) -> str:
    attempt = 1 + DBOS.step_status.current_attempt
    if attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {attempt}"


@DBOS.step()
def ship(order: int, receipt: str) -> str:
    return f"{receipt}, shipped"


@DBOS.workflow(name="checkout")
def checkout(order: int) -> str:
    receipt = charge(order, cents=500)
    DBOS.sleep(0.2)
    return ship(order, receipt)


def work() -> None:
    DBOS(
        config={
            "name": "before",
            "system_database_url": URL,
            "application_version": "1",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    DBOS.register_queue("orders", polling_interval_sec=0.1)
    threading.Event().wait()


def main() -> None:
    client = DBOSClient(system_database_url=URL)
    options = {
        "queue_name": "orders",
        "workflow_name": "checkout",
        "app_version": "1",
        "workflow_id": "order-7",
    }
    handle = client.enqueue(options, 7)
    again = client.enqueue(options, 7)
    print("the same workflow:", again.get_workflow_id() == handle.get_workflow_id())
    print(handle.get_result(polling_interval_sec=0.05))


if __name__ == "__main__":
    work() if sys.argv[1:] == ["worker"] else main()
