"""A trace as a scenario's ``requests``."""

from __future__ import annotations

import json
import re
from typing import IO, Any

from kvplan.trace.trace import Trace

_ESCAPED = re.compile("[^\x20-\x7e\U00010000-\U0010ffff]")


def scenario_yaml(trace: Trace, file: IO[str], block_size: int) -> None:
    """``requests: [...]``, one a line; ``content`` tells what is shared. Add model and gpu to run it.

    A session alone would be read as turns that repeat each other: where the trace knows of no sharing, an empty
    ``content`` says so.
    """
    told = None if trace.content is None else trace.content.rows()
    file.write("requests:\n")
    for row, (arrival, prompt, output) in enumerate(
        zip(trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    ):
        request: dict[str, Any] = {"arrival": arrival, "prompt": prompt, "output": output}
        if trace.request_id is not None:
            request["id"] = str(trace.request_id[row])
        if trace.session is not None and trace.session[row] >= 0:
            request["session"] = int(trace.session[row])
        for name, default in (("priority", 0), ("n", 1), ("beam_width", 0)):
            column = getattr(trace, name)
            if column is not None and column[row] != default:
                request[name] = int(column[row])
        if told is not None:
            segments, source, begins = next(told)
            request["content"] = [list(part) for part in segments]
            if source >= 0:
                request["output_content"] = [source, begins] if begins else source
        elif trace.session is not None:
            request["content"] = []
        file.write(f"  - {_flow(request)}\n")


def _flow(value: Any) -> str:
    """JSON of one line that is YAML's flow style too: YAML knows no escaped surrogate pairs."""
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda character: f"\\u{ord(character[0]):04x}", text)
