"""The words of the page, as the simulator means them (DESIGN, section 3)."""

DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "used",
        "Slots that hold a token's K and V that a live sequence still needs; each slot counted once.",
    ),
    (
        "reserved",
        "Slots in a live allocation that will be filled later; known, since the trace tells the length.",
    ),
    ("internal", "Slots of its reservation (for paging: of its last block) that a sequence will never fill."),
    (
        "external",
        "Free slots that cannot serve the request at the head of the queue though their sum could, and "
        "what the placement rounds up beyond a reservation; 0 when nobody waits.",
    ),
    ("cached", "Evictable slots that hold a reusable prefix and no live sequence."),
    ("free", "The rest. The six add up to the pool."),
    ("mean", "Of the pool: weighted by time, over the time in which anything ran."),
    ("running", "Sequences being computed; mean over time, peak over the run."),
    ("queue", "Arrival to first scheduled."),
    ("TTFT", "Arrival to first token."),
    ("ITL", "Between two tokens of one request."),
    ("TPOT", "(last token − first token) / (output tokens − 1); undefined for one output token."),
    ("end to end", "Arrival to last token."),
    (
        "normalized",
        "The PagedAttention paper's: mean over requests of end-to-end time divided by output tokens.",
    ),
    ("goodput", "Requests a second that met every service objective."),
    (
        "preemption",
        "A running sequence gives up its blocks, returns to the queue and is computed again (or swapped).",
    ),
    ("GiB", "2^30 bytes. Sizes are per GPU."),
)
