"""Where items live: one package per store. `treadle.backend` says what each of them does. A name does the
same job in every package; each package names its other modules.

    backend                   the class, and its verbs
    submit, claim, settle     the path of work
    fairness                  which items a claim serves next
    endings, groups           what the end of an item causes; members and values of groups
    dependencies              who waits for whom
    workers                   leases of workers, and items of those that died
    read, lists, watch        items by id; by filter; what operators ask: why, overview, lines
    operate                   what operators change
    retention                 what is pruned, and when
    steps                     what items have recorded, signals to them, their streams
    limits, schedules         permits of the fleet; recurring work
    records                   who changed what; what workers counted
    wakeups                   how processes hear of news
    transactions              writes of users and settlements, committed together
    schema                    tables or keys, and their version
    connection                one connection to the store
    rows                      items as they are stored
"""
