"""Writes the inputs of the measurement in docs/quantise.md into a folder: the shipped model in f16, questions that it was
not trained on with the right answers, and a text of the same questions and answers.

    python scripts/quantise_inputs.py DIR

The shipped model is q8_0; its weights in f16 are those of q8_0, so that losses are against q8_0, not against the
training's f32.
"""

import argparse
import json
import sys
from pathlib import Path
from random import Random

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.chat import render
from training.topics import REPOSITORY, load_held_out, load_topics

TINY = REPOSITORY / "src" / "stayfast" / "engine" / "models" / "stayfast-tiny-q8_0.gguf"


def write_f16(source: Path, target: Path) -> None:
    """The same model with matrices in f16."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    left_out = {"general.architecture", "general.file_type", "general.quantization_version"}
    for name, field in reader.fields.items():
        if name not in left_out and not name.startswith("GGUF."):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=field.types[-1] if is_array else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float16) if values.ndim > 1 else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_f16(TINY, folder / "stayfast-tiny.f16.gguf")
    answers = {topic.name: topic.answer for topic in load_topics()}
    pairs = [(question, answers[topic]) for topic, questions in load_held_out().items() for question in questions]
    with (folder / "questions.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"question": one, "expected": answer, "max_tokens": 96}) + "\n" for one, answer in pairs)
    Random(1).shuffle(pairs)
    text = "".join(render("user", one) + render("assistant", answer) for one, answer in pairs)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    print(f"{folder}: stayfast-tiny.f16.gguf, questions.jsonl ({len(pairs)} questions), text.txt ({len(text):,} characters)")


if __name__ == "__main__":
    main()
