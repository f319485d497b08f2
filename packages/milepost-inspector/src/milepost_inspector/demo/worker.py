"""One worker process: takes the thread up where its last checkpoint left it, until it ends or waits for an answer.

It stands by until it reads its order, one JSON line: ``{"run": 3, "answer": null}``; `answer` is what the person said,
if one was asked. It prints one JSON line when it stops by itself: ``{"question": ...}`` when a person is asked,
``{"end": ...}`` with the agent's last words when there is nothing left to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from typing import Any

import milepost
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from milepost.tools import Ledger

from milepost_inspector.demo import agent, records, world


def main() -> None:
    """Run one worker, as its arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--thread", required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--ledger", action=argparse.BooleanOptionalAction, required=True)
    args = parser.parse_args()
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order: dict[str, Any] = json.loads(line)
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def effect(record: str, payload: dict[str, object]) -> int:
        request = {"op": "effect", "id": record, "run": order["run"], "payload": payload}
        return world.ask(args.world, request)["attempt"]

    def count(record: str) -> int:
        return world.ask(args.world, {"op": "find", "id": record})["effects"]

    rows = records.load(args.records)
    config: RunnableConfig = {
        "configurable": {"thread_id": args.thread},
        "recursion_limit": 100 + 4 * (len(rows) // args.batch + 1),
        "max_concurrency": 8,
    }
    with milepost.connect(args.url) as saver:
        middleware = [Ledger(saver, agent.classes(count), lease="1s", skew="0.2s").middleware()] if args.ledger else []
        graph = agent.build(rows, effect, args.batch, saver, middleware)
        start: Any = {"messages": [("user", "Settle every refund that waits.")]}
        if order["answer"] is not None:
            start = Command(resume=order["answer"])
        elif saver.get_tuple(config) is not None:
            start = None
        result = graph.invoke(start, config)
    asked = result.get("__interrupt__")
    print(json.dumps({"question": asked[0].value} if asked else {"end": result["messages"][-1].text}), flush=True)


def _die_with_parent() -> None:
    # Standard input ends when the conductor is gone, however it went. (Not through `sys.stdin`: its lock would be held
    # when the interpreter shuts down.)
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
