"""What a token is, as far as the prefix cache is concerned: the hash chain of a sequence's full blocks.

vLLM hashes (parent's hash, the block's tokens, extra keys). A trace does not carry token ids; it says which tokens
are equal (`kvplan.trace.Content`). A block is therefore hashed by its *pieces* (source, start, count), joined where
they continue each other, so that two blocks hash alike exactly when their tokens and all tokens before are equal.
64-bit hashes: among 10^7 blocks a collision has a chance of about 3 in 10^6.
"""

from __future__ import annotations

import numpy as np

from kvplan.core.jit import inner
from kvplan.core.state import Core

# Sources that no trace can name: the prompt and the output of one request.
OWN_PROMPT = np.int64(1) << np.int64(61)
OWN_OUTPUT = np.int64(1) << np.int64(62)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@inner
def mix(x: np.uint64) -> np.uint64:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@inner
def fold(chain: np.uint64, source: int, start: int, count: int) -> np.uint64:
    """The chain with one more piece. Sources, starts and counts meet odd multipliers before they are mixed."""
    piece = mix(np.uint64(source) * _GOLDEN + np.uint64(start) * _MIX_1 + np.uint64(count) * _MIX_2)
    return mix(chain * _GOLDEN + piece)


@inner
def uniform(seed: int, request: int, draw: int) -> float:
    """A number in [0, 1) that depends on its arguments alone, so that skipping steps changes no draw.

    `request` is the request's serial number, which stays its own where a place in the columns is used again.
    """
    bits = mix(mix(np.uint64(seed) + _GOLDEN) ^ (np.uint64(request) * _MIX_1 + np.uint64(draw) * _MIX_2 + _GOLDEN))
    return np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inner
def group_key(chain: np.uint64, group: int) -> np.uint64:
    """The key under which a group's block is registered; never 0, which means "none"."""
    key = chain + np.uint64(group) * _GOLDEN
    return key if key != np.uint64(0) else np.uint64(1)


@inner
def extend_chain(core: Core, request: int, row: int, have: int, want: int) -> None:
    """Fills `hashes[row, have:want]`, the chain over blocks have..want-1 of `request`."""
    size = core.config[0].block_size
    r = core.requests[request]
    prompt = np.int64(r.prompt)
    shares = len(core.segment_ptr) > 1
    segment = np.int64(core.segment_ptr[request]) if shares else np.int64(0)
    last = np.int64(core.segment_ptr[request + 1]) if shares else np.int64(0)
    begins = np.int64(0)  # position of the first token of `segment`
    chain = core.hashes[row, have - 1] if have > 0 else _GOLDEN
    position = np.int64(have) * size
    for column in range(have, want):
        end = (np.int64(column) + 1) * size
        source, start, count = np.int64(-1), np.int64(0), np.int64(0)  # the piece being joined
        while position < end:
            while segment < last and begins + core.segment_tokens[segment] <= position:
                begins += core.segment_tokens[segment]
                segment += 1
            if position >= prompt:
                known = shares and core.output_source[request] >= 0
                piece_source = core.output_source[request] if known else OWN_OUTPUT + np.int64(r.serial)
                piece_start = position - prompt + (core.output_start[request] if known else np.int64(0))
                stop = end
            elif segment < last:
                piece_source = core.segment_source[segment]
                piece_start = core.segment_start[segment] + position - begins
                stop = min(end, begins + core.segment_tokens[segment], prompt)
            else:
                piece_source = OWN_PROMPT + np.int64(r.serial)
                piece_start = position
                stop = min(end, prompt)
            if piece_source == source and piece_start == start + count:
                count += stop - position
            else:
                if count > 0:
                    chain = fold(chain, source, start, count)
                source, start, count = piece_source, piece_start, stop - position
            position = stop
        chain = fold(chain, source, start, count)
        core.hashes[row, column] = chain
