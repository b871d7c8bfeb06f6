"""Between the two: the works are treadle's, the callers are written for Celery.

Worker: treadle worker after:app. Program: python between.py
"""

import after

from treadle.contrib.celery import CeleryTask

charge = CeleryTask(after.app, after.charge)
remind = CeleryTask(after.app, after.remind)
basket = CeleryTask(after.app, after.basket)


def main() -> None:
    print(charge.delay(7, cents=500).get(timeout=60))
    print(remind.apply_async(("ada",), countdown=0.2, expires=60).get(timeout=60))
    print("total", basket.delay(["lamp", "chair"]).get(timeout=60))


if __name__ == "__main__":
    main()
    after.app.sync.close()
