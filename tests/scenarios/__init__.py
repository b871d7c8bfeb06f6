"""The 42 acceptance scenarios of a fleet on a shared store, Q1 to Q42, and the tests that show each.

`SCENARIOS` is the list: what it is about, the tests (those of the contract run on every backend, PostgreSQL
included), and what differs here, on purpose. `test_table.py` holds it to what there is.
"""

from __future__ import annotations

from typing import NamedTuple


class Scenario(NamedTuple):
    about: str
    tests: tuple[str, ...]
    differs: str = ""


def _of(about: str, *tests: str, differs: str = "") -> Scenario:
    return Scenario(about, tests, differs)


SCENARIOS: dict[int, Scenario] = {
    # Transactions
    1: _of(
        "a user's transaction rolled back leaves nothing, wakes nobody, announces nothing",
        "test_q01_a_transaction_that_is_rolled_back",
        "test_nothing_is_left_if_it_rolls_back",
    ),
    2: _of(
        "committed: one wake, and handlers see the user's row",
        "test_q02_a_transaction_that_commits",
        "test_it_exists_if_the_transaction_commits",
        "test_the_wake_up_is_sent_with_the_commit",
    ),
    3: _of("savepoints", "test_q03_a_savepoint_that_is_rolled_back", "test_savepoints"),
    4: _of(
        "killed before the commit of a handler's transaction",
        "test_q04_a_worker_that_is_killed_before_the_commit",
        "test_kills_on_postgres",
    ),
    5: _of(
        "a raise after the block",
        "test_q05_a_raise_after_the_block",
        "test_an_exception_rolls_everything_back",
    ),
    6: _of("an error of the user's SQL in the block", "test_q06_an_error_of_the_users_sql"),
    7: _of(
        "a forgotten instruction",
        "test_strict_return",
        "test_returning_a_bare_work",
        differs="a mistake in the code: dead at once with a hint, not retried; to return nothing is void",
    ),
    # Claiming
    8: _of(
        "concurrent claimers, each handler runs once",
        "test_q08_each_handler_runs_once",
        "test_concurrent_claims_are_distinct",
    ),
    9: _of("a locked row is skipped", "test_claims_do_not_wait_for_each_other"),
    10: _of(
        "the cost of a claim does not grow with what waits",
        "test_a_claim_costs_the_same_with_more_ready_items",
        "test_no_verb_scans_a_table",
        differs="pages are counted in tests; times are measured by `make bench BENCH_ARGS=depth`",
    ),
    11: _of("an instant in the past is now", "test_a_run_at_in_the_past_does_not_jump_the_line"),
    12: _of(
        "who was blocked does not jump the line; a schedule survives",
        "test_the_released_go_to_the_end_of_the_line",
        "test_a_schedule_survives_the_release",
    ),
    # Leases
    13: _of("longer than three leases", "test_a_handler_may_be_longer_than_many_leases"),
    14: _of(
        "frozen past its lease",
        "test_a_paused_workers_late_settlement_is_refused",
        "test_a_lost_lease_is_found_at_the_next_heartbeat",
    ),
    15: _of("the same worker with an older lease", "test_the_same_worker_with_an_older_lease_is_stale"),
    16: _of(
        "lapsed but not yet taken",
        "test_a_lapsed_worker_may_settle_until_it_is_buried",
        differs="no event: nothing has happened",
    ),
    17: _of(
        "a thousand are freed at once; nobody takes its own",
        "test_a_thousand_are_freed",
        "test_a_lapsed_worker_that_beats_in_time_is_alive_again",
    ),
    18: _of("the store is away during renewals", "test_an_outage_longer_than_the_lease"),
    19: _of("a graceful stop", "test_stop_waits_for_handlers", "test_stop_releases_what_does_not_end"),
    # Retries
    20: _of(
        "delays grow up to a limit", "test_delays_grow_up_to_a_limit", "test_every_failed_attempt_is_kept"
    ),
    21: _of("compensation, by any route", "test_by_any_route_into_death", "test_by_lost_leases"),
    22: _of("requeue", "test_a_dead_item_is_ready_again", "test_requeue_a_dead_one"),
    23: _of("deferrals spend nothing", "test_defer_gives_the_attempt_back", "test_defer_to_an_instant"),
    24: _of("errors are kept, bounded", "test_every_failed_attempt_is_kept", "test_any_error_can_be_kept"),
    25: _of("a job that kills its workers", "test_a6_a_job_that_kills_its_workers"),
    # Flows
    26: _of("steps, loops, branches", "test_q26_a_flow_loops_branches_and_goes_back", "test_a_long_chain"),
    27: _of(
        "two racing completers, one continuation",
        "test_two_settle_with_the_same_token",
        "test_an_operator_completes_while_the_worker_settles",
    ),
    28: _of("eight prerequisites finish at once, 200 rounds", "test_eight_prerequisites_finish_at_once"),
    29: _of(
        "a dependent comes while its prerequisite ends, 200 races",
        "test_a_dependent_is_submitted_while_its_prerequisite_ends",
    ),
    30: _of(
        "prerequisites that have ended, or died; conditions",
        "test_ended_prerequisites_count_at_once",
        "test_a_dead_prerequisite_dooms_at_once",
        "test_at_least_releases_at_the_threshold_once",
        "test_conditions",
    ),
    31: _of("a thousand children, folded exactly", "test_q31_a_thousand_children_are_added_up"),
    # Keys
    32: _of(
        "a key holds until the whole group has ended",
        "test_open_lasts_until_the_group_has_ended",
        "test_a_key_holds_until_the_group_has_ended",
    ),
    33: _of(
        "50 at once store one",
        "test_fifty_at_once_store_one",
        "test_a_key_belongs_to_a_tenant",
        "test_a_key_belongs_to_a_type",
    ),
    34: _of(
        "any, and a span of time",
        "test_any_lasts_as_long_as_the_item",
        "test_a_number_is_a_span_since_the_submission",
        differs="no exception for a flow's own items: schedules repeat, not flows that submit themselves",
    ),
    # Operators
    35: _of(
        "completed from outside while it runs",
        "test_a_running_item_is_completed",
        "test_an_operator_interrupts_a_handler",
    ),
    36: _of(
        "delete with references, cascade",
        "test_what_is_waited_for_stays",
        "test_cascade_takes_what_was_waited_for",
        "test_cascade_takes_whole_groups",
    ),
    37: _of("deleted while it runs", "test_deleted_while_it_settles", "test_leases_are_lost"),
    38: _of(
        "trigger, all or nothing",
        "test_nothing_is_triggered_if_one_does_not_exist",
        "test_nothing_is_triggered_if_one_is_not_scheduled",
    ),
    # Notifications
    39: _of(
        "signals that fail",
        "test_signals_are_not_needed",
        "test_without_notifications_everything_works",
        "test_the_listener_comes_back",
    ),
    40: _of(
        "idle workers and few items",
        "test_q40_a_wake_costs_each_worker_a_look",
        "test_an_idle_worker_asks_once_per_interval",
        differs="a wake has no budget that one worker could take away from the others: each looks once",
    ),
    # Tenants, waiting
    41: _of(
        "tenants do not meet, and take turns",
        "test_another_tenants_items_are_not_there",
        "test_keys_do_not_meet",
        "test_turns_within_one_claim",
        "test_depth_buys_nothing",
    ),
    42: _of(
        "waiting: timeouts, deleted items, cancellation",
        "test_a_timeout_leaves_nothing",
        "test_what_is_deleted_meanwhile_is_not_found",
        "test_cancelling_a_waiter_reaches_it",
        differs="how soon a waiter hears is measured by `make bench BENCH_ARGS=engine`",
    ),
}
