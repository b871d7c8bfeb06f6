-- Version 7: a heartbeat counts the permits of its worker.

create index permit_worker on treadle.permit (worker);
