"""The tile every attention kernel here is made of: fetch some tokens' K and V, one step of online softmax.

Maths, for the queries q of one KV head's group and a tile of BLOCK_N cached tokens::

    s     = (q kᵀ) · scale · log2 e                       kept in the log2 domain: exp2 is one instruction
    s     = cap · tanh(s / cap)                           soft cap, where the model has one
    s     = -1e30 where the query may not see the token   causal, sliding window
    m'    = max(m, max s);  p = 2^(s - m')                online softmax
    l'    = l · 2^(m - m') + Σ p
    acc'  = acc · 2^(m - m') + p v

Paged and contiguous attention differ in :func:`token_rows` alone, so a comparison of the two measures the
block table and nothing else.

Two decisions keep the loads plain:

* Tokens are *clamped* to the range the sequence owns, not masked. Every load is in bounds and reads data that
  belongs to the sequence (never another's, never a poisoned block), and no load needs a per-row predicate.
  What was clamped is masked in the scores, where its weight becomes exactly 0.
* Hidden scores are -1e30, not -inf: a row that sees nothing of a tile yields finite rubbish, which the next
  visible token multiplies by 2^(-1e30 - m) = 0. Every query sees at least itself, so no rubbish survives and
  no NaN arises.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
HIDDEN = tl.constexpr(-1.0e30)


@triton.jit
def token_rows(table_ptr, tokens, stride_block, stride_token, PAGED: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Element offset of each token's row from the start of its KV head's data, int64: pools pass 2^31
    elements.

    One look-up a token even where a block holds several: equal addresses in a warp are one transaction, and
    as a tensor the look-ups are pipelined like K and V, two tiles ahead. A scalar look-up is not, and would
    stall the loop.
    """
    if PAGED:
        token = tokens.to(tl.uint32)  # unsigned: a division by a power of two is then one shift
        block = tl.load(table_ptr + token // BLOCK_SIZE).to(tl.int64)
        rows = block * stride_block + (token % BLOCK_SIZE).to(tl.int32) * stride_token
    else:
        rows = tokens.to(tl.int64) * stride_token
    return rows


@triton.jit
def own_tokens(tokens, first, last, MASKED: tl.constexpr, WINDOW: tl.constexpr):
    """``tokens`` clamped to what the sequence owns and the window still holds."""
    owned = tokens
    if MASKED:
        owned = tl.minimum(owned, last)
    if WINDOW:
        owned = tl.maximum(owned, first)
    return owned


@triton.jit
def widen(x, COMPUTE: tl.constexpr, KV_FORMAT: tl.constexpr):
    """A loaded K or V tile in the type of the matrix product, without its per-head scale.

    ``e4m3_bits`` is for hardware that cannot convert e4m3: its bits, moved to where fp16 has exponent and
    mantissa, spell value · 2^-8 exactly, subnormals included. :func:`format_factor` gives the 2^8 back,
    outside the loop.
    """
    if KV_FORMAT == "float":
        y = x.to(COMPUTE)
    elif KV_FORMAT == "e4m3":
        y = x.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(COMPUTE)
    elif KV_FORMAT == "e4m3_bits":
        bits = x.to(tl.uint16)
        y = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True).to(COMPUTE)
    else:
        y = x.to(tl.int8, bitcast=True).to(tl.float16).to(COMPUTE)
    return y


@triton.jit
def format_factor(KV_FORMAT: tl.constexpr):
    """What a stored value is to be multiplied by, beside its head's scale."""
    factor: tl.constexpr = 256.0 if KV_FORMAT == "e4m3_bits" else 1.0
    return factor


@triton.jit
def load_rows(ptr, rows, offs_d, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """[rows, BLOCK_D]; the columns past HEAD_DIM are 0. HEAD_DIM is a multiple of 16, so the mask stays
    vectorizable."""
    ptrs = ptr + rows[:, None] + offs_d[None, :]
    if HEAD_DIM == BLOCK_D:
        x = tl.load(ptrs)
    else:
        x = tl.load(ptrs, mask=(offs_d < HEAD_DIM)[None, :], other=0)
    return x


@triton.jit
def load_queries(q_ptr, rows, real, offs_d, HEAD_DIM: tl.constexpr, COMPUTE: tl.constexpr):
    """The query tile in the type of the product; padding rows and columns are 0. fp16 saturates instead of
    overflowing."""
    q = tl.load(q_ptr + rows[:, None] + offs_d[None, :], mask=real[:, None] & (offs_d < HEAD_DIM)[None, :], other=0.0)
    if tl.float16 == COMPUTE and q.dtype != tl.float16:
        q = tl.minimum(tl.maximum(q.to(tl.float32), -65504.0), 65504.0)
    return q.to(COMPUTE)


@triton.jit
def soften(s, cap):
    """cap · tanh(s / cap). 1 - 2/(e^2x + 1) is right at both ends: e^2x may be 0 or inf."""
    return cap * (1.0 - 2.0 / (tl.exp2(s * (2.0 * LOG2_E / cap)) + 1.0))


@triton.jit
def visible_scores(s, scale, softcap, tokens, query_pos, window, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
                   MASKED: tl.constexpr):  # fmt: skip
    """Raw products → scores in the log2 domain, hidden ones at -1e30. ``scale`` bears log2 e unless
    soft-capped."""
    if SOFTCAP:
        s = soften(s * scale, softcap) * LOG2_E
    else:
        s = s * scale
    if MASKED:
        visible = tokens[None, :] <= query_pos[:, None]
        if WINDOW:
            visible = visible & (tokens[None, :] > query_pos[:, None] - window)
        s = tl.where(visible, s, HIDDEN)
    return s


@triton.jit
def softmax_step(s, m, l):
    """One step of the online softmax: (weights of this tile, factor for what was gathered before, new m, new
    l)."""
    m_new = tl.maximum(m, tl.max(s, 1))
    p = tl.exp2(s - m_new[:, None])
    shrink = tl.exp2(m - m_new)
    return p, shrink, m_new, l * shrink + tl.sum(p, 1)


@triton.jit
def finish(acc, m, l):
    """(attention output, log2 of the softmax denominator); an empty context gives 0 and -inf."""
    nonzero = tl.where(l == 0.0, 1.0, l)
    lse = tl.where(l == 0.0, float("-inf"), m + tl.log2(nonzero))
    return acc / nonzero[:, None], lse


@triton.jit
def attend(
    acc,
    m,
    l,
    q,
    query_pos,
    k_ptr,
    v_ptr,
    table_ptr,
    begin,
    end,
    first,
    last,
    scale,
    softcap,
    window,
    stride_block,
    stride_token,
    PAGED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COMPUTE: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Fold the tokens [begin, end) of one sequence and KV head into the running softmax (acc, m, l).

    Reads only the tokens [first, last]. MASKED=False promises that every query sees every token of the range
    and that the range is a multiple of BLOCK_N.
    """
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    for start in range(begin, end, BLOCK_N):
        tokens = start + offs_n
        owned = own_tokens(tokens, first, last, MASKED, WINDOW)
        rows = token_rows(table_ptr, owned, stride_block, stride_token, PAGED, BLOCK_SIZE)
        k = widen(load_rows(k_ptr, rows, offs_d, HEAD_DIM, BLOCK_D), COMPUTE, KV_FORMAT)
        v = widen(load_rows(v_ptr, rows, offs_d, HEAD_DIM, BLOCK_D), COMPUTE, KV_FORMAT)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        s = visible_scores(s, scale, softcap, tokens, query_pos, window, SOFTCAP, WINDOW, MASKED)
        p, shrink, m, l = softmax_step(s, m, l)
        acc = tl.dot(p.to(COMPUTE), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, m, l
