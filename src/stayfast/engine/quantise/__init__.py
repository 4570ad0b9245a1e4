"""Smaller weights: a GGUF model in f32, f16, bf16 or q8_0 becomes one in q8_0, q5_0 or q4_0. Needs the extra `quantise`."""
