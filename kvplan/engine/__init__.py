"""The real engine: a Llama-style decoder on torch that executes the very plans of the compiled scheduler.

::

    Replica.plan ──► core.planned, copies, swaps, tables
                          │
    loop.run_steps ──► Executor.execute(core) ──► seconds ──► Replica.commit
                          │
          batch.StepBatch: token ids, positions, slots, rows of the block table
          decoder.Decoder: the layers;  attention_*.py: the paged attention between them
          pool.KvPool:     the KV memory, and the moves that the plan asks for

The simulator is this with `executor.TorchExecutor` taken out (see `loop`). Torch is imported by the modules that use
it; `import kvplan.engine` loads none.
"""
