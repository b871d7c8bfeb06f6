-- uses: store worker_list
-- reads
-- Workers: all that have a lease. Answers as Workers.list does.

return Workers.list()
