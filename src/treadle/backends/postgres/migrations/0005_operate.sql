-- Version 5: what operators read.

-- info  what the worker says about itself
alter table treadle.worker add column info bytea;
