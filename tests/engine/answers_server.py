"""Serves one GGUF file until standard input closes: MODEL SLOTS TOKENS_PER_SLOT [DRAFT].

Run as a child process, so that a crash of native code shows as an exit code and not as a dead pytest.
Prints the address that clients should use as its first line.
"""

import sys

import xllamacpp


def parameters(model: str, n_slots: int, slot_tokens: int, draft: str | None) -> xllamacpp.CommonParams:
    """A CPU server on a free local port; the context is shared out among the slots.

    One thread: on a shared machine two threads spend more time waiting for each other than working.
    """
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = n_slots
    params.n_ctx = n_slots * slot_tokens
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.cache_ram_mib = 0
    params.verbosity = -1
    if draft:
        params.speculative.draft.mparams.path = draft
        params.speculative.draft.n_max = 4
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    return params


def main() -> None:
    """Starts the server, says where, and waits for the parent to go."""
    model, n_slots, slot_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    draft = sys.argv[4] if len(sys.argv) > 4 else None
    server = xllamacpp.Server(parameters(model, n_slots, slot_tokens, draft))
    sys.stdout.write(server.listening_address + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
