"""The ledger serves programs that have no LangGraph, only its checkpoints."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("langgraph.") and not name.startswith(("langgraph.checkpoint", "langgraph.store", "langgraph.cache")):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())

import milepost
from langchain_core.messages import AIMessage
from milepost.ledger import CallRequest, Ledger

call = {"name": "pay", "args": {}, "id": "c1"}
with milepost.connect("memory:") as saver:
    ledger = Ledger(saver)
    ledger.perform(CallRequest(tool="pay", thread="t", message="m", call="c1"), lambda: "paid")
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    values = {"messages": [AIMessage("", id="m", tool_calls=[call])]}
    checkpoint = {"v": 4, "id": "1", "ts": "", "channel_values": values, "channel_versions": {"messages": 1},
                  "versions_seen": {}, "updated_channels": None}
    saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"messages": 1})
    print([message.content for message in ledger.repair("t").added], ledger.orphans("t"))
assert not [name for name in sys.modules if name.startswith(("langgraph.types", "langgraph.graph"))]
"""


def test_a_ledger_without_langgraph() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert told.stdout == "['paid'] []\n", told.stderr
