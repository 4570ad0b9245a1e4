"""Which type a tensor gets when a model is quantised.

Problem: a block of 32 weights with one scale costs little accuracy in a large matrix, and much in a norm, a router of
experts or a table of positions, which are small anyway.
Rule, that of llama.cpp's own tool as far as its formats allow:
    a matrix of weights (two dimensions, or three: experts) gets the wanted type if a row is a multiple of 32
    norms, biases, routers, positions, convolutions and whatever else is no matrix stay as they are
    the output matrix (of tied weights: the token embedding) is at least q8_0, as its errors reach every token at once;
    llama.cpp's tool takes q6_K there, which the `gguf` package cannot write
Source: `llama_tensor_get_type` and `tensor_allows_quantization` of llama.cpp.
When it is wrong: an architecture with a sensitive matrix under a new name. The accuracy check exists for that.
"""

import re
from collections.abc import Sequence
from typing import Final

TARGETS: Final = ("q8_0", "q5_0", "q4_0")
SOURCES: Final = ("f32", "f16", "bf16", "q8_0")
BLOCK: Final = 32
_NEVER: Final = re.compile(
    r"_norm\.weight$|ffn_gate_inp|position_embd|token_types|ssm_|shortconv|conv1d|time_mix_|attn_rel_b|altup|laurel"
    r"|per_layer_model_proj|\.(?:pos_embd|patch_embd)|^(?:v|mm|a)\.")
_OUTPUT: Final = "output.weight"
_EMBEDDING: Final = "token_embd.weight"


def choose_type(name: str, shape: Sequence[int], source: str, target: str, *, is_tied: bool) -> str:
    """The type of one tensor. shape: as in the file, the length of a row first. is_tied: the model has no output matrix."""
    is_matrix = len(shape) in (2, 3) and name.endswith(".weight") and _NEVER.search(name) is None
    if not is_matrix or shape[0] % BLOCK or source not in SOURCES:
        return source
    if name == (_EMBEDDING if is_tied else _OUTPUT):
        return "q8_0"
    return target
