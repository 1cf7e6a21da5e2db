"""A trace as a scenario's ``requests``."""

from __future__ import annotations

import json
from typing import IO, Any

from kvplan.trace.trace import Trace


def scenario_yaml(trace: Trace, file: IO[str], block_size: int) -> None:
    """``requests: [...]``, one a line; ``content`` tells what is shared. Add model and gpu to run it."""
    content = trace.content
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
        if content is not None:
            own = slice(int(content.segment_ptr[row]), int(content.segment_ptr[row + 1]))
            columns = (content.segment_source, content.segment_start, content.segment_tokens)
            request["content"] = [
                list(part) for part in zip(*(column[own].tolist() for column in columns), strict=True)
            ]
            if content.output_source[row] >= 0:
                request["output_content"] = int(content.output_source[row])
        # JSON of one line is YAML's flow style.
        file.write(f"  - {json.dumps(request)}\n")
