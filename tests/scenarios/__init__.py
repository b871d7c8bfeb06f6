"""The 42 acceptance scenarios of a fleet on a shared store, Q1 to Q42, and the tests that show each.

`SCENARIOS` lists what each is about, its tests (those of the contract run on every backend, PostgreSQL
included), and what differs here on purpose. `test_table.py` checks that the tests exist.
"""

from __future__ import annotations

from typing import NamedTuple


class Scenario(NamedTuple):
    about: str
    tests: tuple[str, ...]
    differs: str = ""


def _scenario(about: str, *tests: str, differs: str = "") -> Scenario:
    return Scenario(about, tests, differs)


SCENARIOS: dict[int, Scenario] = {
    # Transactions
    1: _scenario(
        "a rolled back transaction of the user leaves nothing: no item, no wake-up, no event",
        "test_q01_a_rolled_back_transaction_submits_nothing",
        "test_nothing_is_left_if_it_rolls_back",
    ),
    2: _scenario(
        "a commit sends one wake-up, and handlers see the user's row",
        "test_q02_a_committed_transaction_wakes_workers_once",
        "test_it_exists_if_the_transaction_commits",
        "test_the_wake_up_is_sent_with_the_commit",
    ),
    3: _scenario("savepoints", "test_q03_a_rolled_back_savepoint_submits_nothing", "test_savepoints"),
    4: _scenario(
        "a worker killed before the commit of a handler's transaction",
        "test_q04_a_worker_killed_before_the_commit_leaves_nothing",
        "test_postgres_survives_kills_cut_connections_and_restarts",
    ),
    5: _scenario(
        "an exception after the block of a handler's transaction",
        "test_q05_an_exception_after_the_block_undoes_everything",
        "test_an_exception_rolls_everything_back",
    ),
    6: _scenario(
        "an error in the user's SQL in the block", "test_q06_an_error_in_the_users_sql_fails_the_attempt"
    ),
    7: _scenario(
        "a handler that does not return its Result",
        "test_a_result_that_is_not_returned_makes_the_item_dead",
        "test_a_handler_that_returns_a_work_is_dead_at_once",
        differs="a mistake in the code: dead at once with a hint, not retried; returning nothing is void",
    ),
    # Claiming
    8: _scenario(
        "concurrent claimers, each handler runs once",
        "test_q08_each_handler_runs_once",
        "test_concurrent_claims_return_each_item_once",
    ),
    9: _scenario("a locked row is skipped", "test_claims_do_not_wait_for_each_other"),
    10: _scenario(
        "the cost of a claim does not grow with the backlog",
        "test_a_claim_costs_the_same_with_more_ready_items",
        "test_no_verb_scans_a_table",
        differs="pages are counted in tests; times are measured by `make bench BENCH_ARGS=depth`",
    ),
    11: _scenario("a run_at in the past means now", "test_a_run_at_in_the_past_gives_no_precedence"),
    12: _scenario(
        "a released item goes behind ready items, and its delay still holds",
        "test_a_released_item_goes_behind_ready_items",
        "test_an_item_released_before_it_is_due_is_scheduled",
    ),
    # Leases
    13: _scenario("a handler longer than three leases", "test_a_handler_may_run_longer_than_its_lease"),
    14: _scenario(
        "a worker frozen past its lease",
        "test_the_late_settlement_of_a_stopped_worker_is_refused",
        "test_a_lost_lease_is_found_at_the_next_heartbeat",
    ),
    15: _scenario("an older token of the same worker", "test_an_older_token_of_the_same_worker_is_stale"),
    16: _scenario(
        "a lease that lapsed and was not yet taken",
        "test_a_lapsed_worker_may_settle_until_it_is_removed",
        differs="no event: nothing has happened",
    ),
    17: _scenario(
        "a thousand items are freed at once; a worker that beats in time keeps its own",
        "test_a_thousand_items_of_a_lapsed_worker_are_freed",
        "test_a_lapsed_worker_that_beats_before_removal_keeps_its_leases",
    ),
    18: _scenario(
        "the store is unavailable during heartbeats",
        "test_an_outage_longer_than_the_lease_interrupts_handlers",
    ),
    19: _scenario(
        "a graceful stop", "test_stop_waits_for_handlers", "test_stop_releases_items_that_do_not_end_in_time"
    ),
    # Retries
    20: _scenario(
        "delays grow up to a limit",
        "test_delays_grow_up_to_a_maximum",
        "test_the_last_ten_failed_attempts_are_kept",
    ),
    21: _scenario(
        "compensation for every kind of death",
        "test_an_item_that_dies_in_an_attempt_is_compensated",
        "test_an_item_whose_leases_were_lost_is_compensated",
    ),
    22: _scenario(
        "requeue",
        "test_a_requeued_item_is_ready_with_attempt_0",
        "test_requeue_resets_the_attempt_and_opens_the_group",
    ),
    23: _scenario(
        "a deferral spends no attempt",
        "test_a_deferred_item_gets_its_attempt_back",
        "test_defer_to_a_run_at",
    ),
    24: _scenario(
        "errors are kept, bounded", "test_the_last_ten_failed_attempts_are_kept", "test_any_error_can_be_kept"
    ),
    25: _scenario(
        "an item that kills its workers",
        "test_a6_an_item_whose_workers_die_too_often_ends_dead",
        "test_an_item_that_crashes_its_process_too_often_is_dead",
    ),
    # Flows
    26: _scenario(
        "steps, loops, branches",
        "test_q26_a_flow_may_loop_and_branch",
        "test_a_chain_of_a_hundred_children_is_one_group",
    ),
    27: _scenario(
        "two concurrent completions, one continuation",
        "test_two_concurrent_settlements_of_one_token_apply_once",
        "test_an_operator_completes_while_the_worker_settles",
    ),
    28: _scenario(
        "eight prerequisites finish at once, 200 rounds",
        "test_eight_prerequisites_that_succeed_at_once_release_once",
    ),
    29: _scenario(
        "a dependent is submitted while its prerequisite ends, 200 races",
        "test_a_dependent_is_submitted_while_its_prerequisite_ends",
    ),
    30: _scenario(
        "prerequisites that have ended or died; conditions",
        "test_ended_prerequisites_count_at_once",
        "test_a_dead_prerequisite_dooms_at_once",
        "test_at_least_releases_once_at_the_threshold",
        "test_when_decides_after_two_successes_and_a_death",
    ),
    31: _scenario("a thousand children with an exact sum", "test_q31_a_thousand_children_are_added_up"),
    # Keys
    32: _scenario(
        "a key holds until the whole group has ended",
        "test_scope_open_lasts_until_the_group_has_ended",
        "test_a_key_holds_until_the_group_has_ended",
    ),
    33: _scenario(
        "50 concurrent submits of a key store one item",
        "test_fifty_concurrent_submits_of_a_key_store_one_item",
        "test_the_same_key_may_be_used_by_two_tenants",
        "test_the_same_key_may_be_used_by_two_types",
    ),
    34: _scenario(
        "the scopes any and seconds",
        "test_scope_any_lasts_as_long_as_the_item_is_stored",
        "test_a_numeric_scope_counts_seconds_since_submission",
        differs="no exception for items of the same flow: use a schedule to repeat a flow",
    ),
    # Operators
    35: _scenario(
        "a running item is completed by an operator",
        "test_a_running_item_is_completed",
        "test_an_operator_interrupts_a_handler",
    ),
    36: _scenario(
        "delete with references, cascade",
        "test_a_group_that_another_item_waits_for_is_not_deleted",
        "test_cascade_deletes_the_prerequisites_too",
        "test_cascade_deletes_whole_groups",
    ),
    37: _scenario(
        "a running item is deleted",
        "test_an_item_is_deleted_while_it_settles",
        "test_leases_of_deleted_items_are_lost",
    ),
    38: _scenario(
        "trigger, all or nothing",
        "test_trigger_changes_nothing_if_one_item_is_missing",
        "test_trigger_changes_nothing_if_one_item_is_not_scheduled",
    ),
    # Notifications
    39: _scenario(
        "wake-ups that fail",
        "test_everything_runs_once_without_reliable_wakeups",
        "test_without_notifications_everything_works",
        "test_the_listener_comes_back",
    ),
    40: _scenario(
        "idle workers and few items",
        "test_q40_a_wake_up_costs_each_worker_few_claims",
        "test_an_idle_worker_makes_at_most_one_call_per_interval",
        differs="a wake-up is not limited to some workers: each worker claims once",
    ),
    # Tenants, waiting
    41: _scenario(
        "tenants are separate and take turns",
        "test_items_of_another_tenant_are_not_found",
        "test_keys_of_two_tenants_are_separate",
        "test_one_claim_is_fair",
        "test_a_long_backlog_does_not_delay_others",
    ),
    42: _scenario(
        "waiting: timeouts, deleted items, cancellation",
        "test_a_wait_timeout_leaves_no_task",
        "test_waiting_for_a_deleted_item_raises_not_found",
        "test_cancelling_a_waiter_does_not_touch_the_item",
        differs="how soon a waiter hears is measured by `make bench BENCH_ARGS=engine`",
    ),
}
