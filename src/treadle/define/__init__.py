"""What users define. It imports what is below it, and `handler`: a signature names `Context` and `Result`.

decorators             `@work`: begin here
work, work_type        one call, before it is stored; what `@work` makes of a function
signature              what is read from a function: name, parameters, result
option_checks          the values of options, checked; `treadle.options` says which option wins
condition, dependency  when an item that waits may start, groups; works that wait for other items
cron                   when an expression is due next
secret_values          what is shown as `***`: `Secret`, and names such as `password`
"""
