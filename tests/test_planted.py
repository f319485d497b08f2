"""The suite catches savers with one mistake each: the behaviour named beside a fault fails on it, and passes without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from milepost.errors import MilepostError
from milepost.memory import MemoryStore
from milepost.saver import Saver
from milepost.testing import Memory, Subject
from milepost.testing.suite import Everything, cases_of
from planted import ledgers, parts, savers, stores

FAULTS: dict[Any, str] = {
    stores.OrdinaryReplaces: "test_an_ordinary_write_is_first_wins",
    stores.SpecialKeepsFirst: "test_a_special_write_is_last_wins",
    stores.DecidedPerBatch: "test_a_mixed_batch_is_decided_write_by_write",
    stores.OrphansDropped: "test_writes_may_come_before_their_checkpoint",
    stores.LosersAccepted: "test_a_loser_leaves_nothing_that_is_referred_to",
    stores.LatestByLastPut: "test_the_greatest_id_is_latest",
    stores.LatestByIdAlone: "test_a_child_is_later_than_its_parent",
    stores.PutAgainRewinds: "test_an_older_checkpoint_put_again_does_not_rewind",
    stores.UnknownIsLatest: "test_a_config_names_a_checkpoint_or_the_latest",
    stores.DeletedComesBack: "test_late_puts_and_writes_are_refused",
    stores.TombstoneOfTheHeadAlone: "test_late_puts_and_writes_are_refused",
    stores.FencesUnread: "test_a_write_of_a_former_owner_is_refused",
    stores.AnyHeadWillDo: "test_of_two_runs_one_goes_on",
    stores.LeasesDieWithTheirThread: "test_a_lease_outlives_what_the_thread_holds",
    stores.HandsOverToAnybody: "test_a_hand_over_names_the_lease_that_it_ends",
    stores.WaitingThreadsForgotten: "test_everything_goes",
    stores.NeverStale: "test_a_put_after_another_savers_prune",
    stores.MergesWhatIsRefused: "test_a_put_that_is_refused_merges_nothing",
    stores.MergesTooMuch: "test_what_reaches_beyond_it_stays",
    stores.PruneDropsAheadWrites: "test_writes_ahead_of_their_checkpoint_stay",
    stores.ParentsDangle: "test_they_go_and_the_rest_stays",
    stores.DropsBehindAWriter: "test_the_latest_of_each_namespace_stays",
    stores.CopyLosesTaskPath: "test_writes_ahead_and_task_paths_come_along",
    stores.CopySortsById: "test_order_by_lineage_comes_along",
    stores.BeforeComparesIds: "test_before_goes_by_the_order_of_each_namespace",
    stores.ListAscends: "test_all_threads_and_namespaces_newest_first",
    stores.OnePageAlone: "test_more_than_a_page",
    stores.LineageBySortOrder: "test_a_fork_sees_its_own_past",
    stores.ReadsWrite: "test_reading_does_not_write",
    stores.RewritesBehindAWriter: "test_a_thread_that_is_written_to_is_not_rewritten",
    stores.RewriteKeepsOldWrites: "test_a_rewritten_checkpoint_keeps_its_place",
    stores.RewriteLosesAWrite: "test_a_thread_from_before_schemas",
    stores.StoredInTwoSteps: "test_a_change_that_fails_can_be_repeated",
    savers.PendingUnsorted: "test_they_come_back_in_the_order_of_their_key",
    savers.ValuesByLabel: "test_equal_labels_and_other_values",
    savers.NewVersionsAlone: "test_channels_that_new_versions_does_not_name",
    savers.LooksAtTheParentAlone: "test_a_label_that_moved_without_being_named",
    savers.LimitZeroIsAll: "test_limits",
    savers.DottedFilters: "test_filters_take_keys_literally",
    savers.HandedOutTwice: "test_what_is_handed_out_is_fresh",
    savers.UnavailableIsAbsent: "test_unavailable_is_not_absent",
    savers.RefusesInsideALoop: "test_a_blocking_call_inside_a_running_loop",
    savers.PrunesOneStrategy: "test_delete_by_prune_is_a_deletion",
    savers.AListInPlace: "test_a_live_handle_names_channel_and_path",
    parts.guard_by_identity: "test_a_message_edited_between_puts",
    parts.guard_by_equality: "test_a_message_edited_between_puts",
    parts.guard_is_shallow: "test_a_message_edited_between_puts",
    parts.prune_drops_delta_ancestors: "test_prune",
    parts.prune_drops_items_of_writes: "test_writes_ahead_of_their_checkpoint_stay",
    parts.retention_forgets_forks: "test_where_branches_part",
    parts.retention_forgets_who_waits: "test_what_waits_stays",
    parts.retention_forgets_what_replays_read: "test_calls_of_subgraphs_go_with_their_root",
    parts.compaction_does_not_wait_for_a_boundary: "test_only_at_a_settled_boundary",
    parts.namespaces_alias: "test_namespaces_do_not_meet",
    parts.thread_and_namespace_run_together: "test_where_an_id_ends",
    parts.metadata_of_the_config_is_lost: "test_metadata_takes_the_scalars_of_the_config",
    parts.credentials_are_kept: "test_credentials_stay_out_of_metadata",
    parts.put_does_not_wait_for_writes: "test_a_put_waits_for_writes_of_its_parent",
    parts.failed_writes_are_forgotten: "test_a_put_raises_for_writes_of_its_parent_that_failed",
    parts.fences_are_not_carried: "test_writes_in_the_block_carry_the_fence",
    parts.the_last_lease_of_a_context_counts: "test_writes_in_the_block_carry_the_fence",
    parts.a_lost_reply_leaves_a_lease: "test_a_lease_whose_reply_is_lost_is_given_back",
    ledgers.SettlesUnconditionally: "test_a_zombie_is_told",
    ledgers.ClaimsTwiceAfterALostReply: "test_a_lost_reply_to_a_claim",
    ledgers.LooksForNoOrphans: "test_a_call_worded_anew_takes_over_the_record",
    ledgers.ClaimsForTheDead: "test_a_late_call_of_a_deleted_past_is_refused",
    ledgers.ClaimsWithoutTheFence: "test_a_thread_that_is_anothers",
    ledgers.DeletesWhatIsUnsettled: "test_a_deletion_does_not_forget_the_unknown",
    ledgers.PruningForgetsCalls: "test_no_upkeep_forgets_a_call",
    ledgers.ForgetsWhateverItIsTold: "test_what_no_checkpoint_can_reach_may_be_forgotten",
    ledgers.CopiesNoCalls: "test_a_copy_knows_what_was_done",
    ledgers.key_from_the_task: "test_where_the_task_started_does_not_matter",
    ledgers.no_barrier: "test_a_checkpoint_that_does_not_come",
    ledgers.blind_retry: "test_an_expired_lease_is_in_doubt_and_never_free",
    ledgers.an_expired_lease_is_free: "test_an_expired_lease_is_in_doubt_and_never_free",
    ledgers.nobody_waits_for_zombies: "test_nobody_decides_while_a_zombie_can_act",
    ledgers.arguments_do_not_matter: "test_the_same_key_for_something_else",
    ledgers.orphans_stay_bound_to_their_message: "test_a_call_worded_anew_takes_over_the_record",
    ledgers.bound_to_the_first_attempt: "test_tried_again_on_another_branch",
    ledgers.undone_in_order_of_start: "test_the_last_effect_is_undone_first",
    ledgers.a_failed_call_is_an_orphan: "test_a_new_call_is_no_orphan_of_what_was_undone",
    parts.pending_writes_are_not_upgraded: "test_an_upgrade_covers_all_that_is_kept_under_a_name",
    parts.unknown_versions_are_taken_as_they_are: "test_what_nobody_declared_is_refused",
    parts.an_upgraded_value_lies_where_the_old_one_does: "test_what_is_put_after_an_upgrade_is_of_the_new_version",
    parts.a_root_upgrades_its_children: "test_namespaces_have_schemas_of_their_own",
    parts.lost_channels_are_not_told: "test_channels_that_a_graph_does_not_know_are_told_before_they_go",
    parts.what_is_rebuilt_beside_is_left_behind: "test_what_a_refused_checkpoint_is_rebuilt_from_is_kept",
    parts.what_an_older_version_needs_goes: "test_what_it_sees_is_not_pruned",
    parts.what_was_rewritten_is_not_kept: "test_what_was_there_comes_back",
    parts.writers_do_not_hear_of_a_move: "test_who_writes_meanwhile_writes_to_where_it_moved",
    parts.listings_show_all_tenants: "test_the_same_id_is_another_thread",
    parts.listings_look_at_all_tenants: "test_listings_do_not_look_at_other_tenants",
    parts.what_is_sealed_is_anybodys: "test_what_is_sealed_is_the_tenants",
    parts.finished_work_is_abandoned: "test_work_that_is_left",
    parts.every_root_is_a_first_run: "test_who_has_not_looked_for_the_thread_starts_no_first_run",
    parts.a_listener_can_break_a_put: "test_a_listener_that_raises_disturbs_nothing",
}


def _subject(fault: Any, patch: pytest.MonkeyPatch) -> type[Subject]:
    if not isinstance(fault, type):
        return parts.planted(fault, patch)
    if issubclass(fault, MemoryStore):
        return stores.subject(fault)
    assert issubclass(fault, Saver)
    return savers.subject(fault)


def _failures(subject: type[Subject], behaviour: str, directory: Path) -> list[str]:
    """The cases of one behaviour that fail on `subject`."""
    suite = type("Suite", (Everything,), {"subject": subject})
    cases = [(name, case) for name, case in cases_of(suite) if name.partition("[")[0] == behaviour]
    assert cases, f"there is no behaviour {behaviour}"
    return [name for number, (name, case) in enumerate(cases) if _fails(case, directory / str(number))]


def _fails(case: Callable[..., None], directory: Path) -> bool:
    directory.mkdir()
    try:
        case(directory, "blocking")
    except (AssertionError, MilepostError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.__name__) for fault in FAULTS])
def test_the_suite_catches(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        assert _failures(_subject(fault, patch), FAULTS[fault], tmp_path), (
            f"{FAULTS[fault]} passes in spite of the fault"
        )


@pytest.mark.parametrize("behaviour", sorted(set(FAULTS.values())))
def test_the_healthy_saver_passes(behaviour: str, tmp_path: Path) -> None:
    assert _failures(Memory, behaviour, tmp_path) == []
