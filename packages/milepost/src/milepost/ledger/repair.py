"""Repair: give a thread the tool messages that are recorded, and that its messages lack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from milepost.callstore import CallQuery
from milepost.codec.calls import CallInfo, call_key
from milepost.errors import InvalidConfig
from milepost.ledger.basis import OverSaver
from milepost.ledger.hands import Hands
from milepost.ledger.record import CallRecord
from milepost.ledger.upkeep import Upkeep
from milepost.places import Place


async def repair(
    hands: Hands, saver: OverSaver, upkeep: Upkeep, tenant: str, thread: str, channel: str
) -> list[ToolMessage]:
    """See `milepost.ledger.Ledger.repair`. To be called under the thread's lease."""
    found = await saver.operations.get_tuple(hands.side, Place(thread, "", None))
    if found is None:
        return []
    messages = found.checkpoint["channel_values"].get(channel, [])
    if not isinstance(messages, list) or not all(isinstance(message, BaseMessage) for message in messages):
        raise InvalidConfig(
            f"the channel {channel!r} of thread {thread!r} is no list of messages: name the one that is", what="channel"
        )
    settled = await _settled(hands, upkeep, tenant, thread, _unanswered(messages))
    if not settled:
        return []
    whole, added = _answered(messages, settled)
    await _put(hands, saver, found, thread, channel, whole)
    return added


def _unanswered(messages: Sequence[BaseMessage]) -> list[tuple[AIMessage, str]]:
    """(message, call id) of each call that no tool message answers."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    return [
        (message, call["id"] or "")
        for message in messages
        if isinstance(message, AIMessage) and message.id is not None
        for call in message.tool_calls
        if call["id"] not in answered
    ]


async def _settled(
    hands: Hands, upkeep: Upkeep, tenant: str, thread: str, calls: Sequence[tuple[AIMessage, str]]
) -> dict[tuple[str | None, str], CallRecord]:
    """(message id, call id) -> the record of a call that has succeeded."""
    keys = {
        call_key(thread, CallInfo("", None, "", "", "", tenant=tenant, message=message.id, call=id)): (message.id, id)
        for message, id in calls
    }
    if not keys:
        return {}
    book = upkeep.core.book
    records = [book.open(row) for row in await upkeep.listed(hands, CallQuery(thread, keys=tuple(keys)))]
    return {
        keys[key]: record
        for record in records
        if record.state == "succeeded"
        for key in (record.key, *record.aliases)
        if key in keys
    }


def _answered(
    messages: Sequence[BaseMessage], settled: dict[tuple[str | None, str], CallRecord]
) -> tuple[list[BaseMessage], list[ToolMessage]]:
    """The messages with what is recorded, each behind its call, and what was added."""
    whole: list[BaseMessage] = []
    added: list[ToolMessage] = []
    for message in messages:
        whole.append(message)
        if not isinstance(message, AIMessage):
            continue
        for call in message.tool_calls:
            record = settled.get((message.id, call["id"] or ""))
            if record is not None:
                added.append(_message(record, call["id"] or ""))
                whole.append(added[-1])
    return whole, added


def _message(record: CallRecord, call: str) -> ToolMessage:
    """The tool message that a recorded result makes."""
    result = record.result
    if isinstance(result, ToolMessage):
        return result.model_copy(update={"tool_call_id": call, "id": result.id or f"{record.key}:{record.generation}"})
    content = result if isinstance(result, str) else json.dumps(result, default=str)
    return ToolMessage(content, tool_call_id=call, name=record.tool, id=f"{record.key}:{record.generation}")


async def _put(
    hands: Hands, saver: OverSaver, found: CheckpointTuple, thread: str, channel: str, messages: list[BaseMessage]
) -> None:
    operations = saver.operations
    parent = found.checkpoint["id"]
    versions = dict(found.checkpoint["channel_versions"])
    versions[channel] = saver.get_next_version(versions.get(channel), None)
    checkpoint: dict[str, Any] = {
        **found.checkpoint,
        "id": str(uuid6(clock_seq=-2)),
        "ts": datetime.now(UTC).isoformat(),
        "channel_values": {**found.checkpoint["channel_values"], channel: messages},
        "channel_versions": versions,
        "updated_channels": [channel],
    }
    metadata: dict[str, Any] = {
        "source": "update",
        "step": found.metadata.get("step", -1) + 1,
        "parents": found.metadata.get("parents", {}),
    }
    draft = operations.codec.draft(
        thread,
        "",
        checkpoint["id"],
        parent,
        cast("Checkpoint", checkpoint),
        cast("CheckpointMetadata", metadata),
        {channel: versions[channel]},
    )
    await operations.put(hands.side, Place(thread, "", parent), draft)
