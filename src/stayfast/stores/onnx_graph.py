"""Builds the ONNX graph of a BERT sentence encoder from its safetensors, without torch or downloads.

Problem: such encoders are published as weights for a framework of a gigabyte. Rule: write the arithmetic of BERT as thirty
lines of ONNX graph with the weights as constants; onnxruntime quantizes them to int8.

    x = LayerNorm(word[ids] + position[0..t] + type[0])
    6 times:  q, k, v = x Wqkv;  a = softmax(q k^T / sqrt(d)) v;  x = LayerNorm(x + a Wo);  x = LayerNorm(x + gelu(x Wi) Wp)
    vector = mean over tokens, of length 1

Query, key and value are one product. Padding gets a score of -1e9 in each softmax, and no part of the mean. Inputs `ids` and
`attention_mask` (1: a token, 0: padding) are int64 [texts, tokens], output `vector` is float32 [texts, dims].
Source: the model cards of sentence-transformers; Devlin et al., "BERT" (2018).
When wrong: supports BERT with the mean over tokens only. Other models need an ONNX file.
"""

import json
from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from stayfast.stores.safetensors import read_safetensors

Floats = NDArray[np.float32]
MASK = "attention_mask"
_OPSET, _IR_VERSION = 20, 9


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """The dimensions of an encoder."""

    n_layers: int
    n_heads: int
    n_dims: int
    epsilon: float

    @classmethod
    def read(cls, folder: Path) -> "EncoderShape":
        """From the folder's config.json. Raises ValueError unless it is BERT with the mean over tokens."""
        config = json.loads((folder / "config.json").read_bytes())
        if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
            raise ValueError(f"{folder} has a model of type {config.get('model_type')!r}: only bert can be built; add its "
                             "model.onnx")
        pooling = folder / "1_Pooling" / "config.json"
        if pooling.exists() and not json.loads(pooling.read_bytes()).get("pooling_mode_mean_tokens"):
            raise ValueError(f"{folder} does not pool by the mean over tokens")
        return cls(config["num_hidden_layers"], config["num_attention_heads"], config["hidden_size"],
                   float(config.get("layer_norm_eps", 1e-12)))


class _Graph:
    """A graph under construction."""

    def __init__(self, shape: EncoderShape, weights: dict[str, Floats]) -> None:
        self.shape = shape
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.padding = ""  # name of the scores that are added: 0 for a token, -1e9 for padding; [texts, 1, 1, tokens]

    def add(self, kind: str, *inputs: str, n: int = 1, **attributes: Any) -> str:
        """Add a node; returns the name of its first output. Further outputs are named .1, .2."""
        name = f"{kind}{len(self.nodes)}"
        outputs = [name] + [f"{name}.{i}" for i in range(1, n)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))
        return name

    def add_constant(self, name: str, values: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add_dense(self, x: str, name: str, *parts: str) -> str:
        """x W + b, of one layer or of several concatenated. The file has weights as [out, in]."""
        weight = np.concatenate([self.weights[f"{name}.{part}weight"] for part in parts or ("",)])
        bias = np.concatenate([self.weights[f"{name}.{part}bias"] for part in parts or ("",)])
        product = self.add("MatMul", x, self.add_constant(f"{name}.w", weight.T))
        return self.add("Add", product, self.add_constant(f"{name}.b", bias))

    def add_layer_norm(self, x: str, name: str) -> str:
        """LayerNorm over the last axis."""
        return self.add("LayerNormalization", x, self.add_constant(f"{name}.w", self.weights[f"{name}.weight"]),
                        self.add_constant(f"{name}.b", self.weights[f"{name}.bias"]), axis=-1, epsilon=self.shape.epsilon)

    def add_layer(self, x: str, at: str) -> str:
        qkv = self.add_dense(x, f"{at}.attention.self", "query.", "key.", "value.")
        # [b, t, 3, heads, d] -> [3, b, heads, t, d]
        heads = self.add("Transpose", self.add("Reshape", qkv, "heads"), perm=[2, 0, 3, 1, 4])
        split = self.add("Split", heads, n=3, axis=0, num_outputs=3)
        q, k, v = (self.add("Squeeze", output, "axis0") for output in (split, f"{split}.1", f"{split}.2"))
        scores = self.add("Mul", self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2])), "scale")
        attention = self.add("Softmax", self.add("Add", scores, self.padding), axis=-1)
        context = self.add("MatMul", attention, v)
        context = self.add("Reshape", self.add("Transpose", context, perm=[0, 2, 1, 3]), "merged")
        context = self.add_dense(context, f"{at}.attention.output.dense")
        x = self.add_layer_norm(self.add("Add", x, context), f"{at}.attention.output.LayerNorm")
        wide = self.add("Gelu", self.add_dense(x, f"{at}.intermediate.dense"))
        return self.add_layer_norm(self.add("Add", x, self.add_dense(wide, f"{at}.output.dense")), f"{at}.output.LayerNorm")


def build_graph(folder: Path) -> onnx.ModelProto:
    """The graph in float32. Takes seconds for 22 million weights. Raises ValueError and OSError."""
    shape = EncoderShape.read(folder)
    weights = read_safetensors(folder / "model.safetensors")
    graph = _Graph(shape, weights)
    try:
        _encode(graph)
    except KeyError as missing:
        raise ValueError(f"{folder}/model.safetensors has no weights named {missing}") from None
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in ("ids", MASK)]
    vector = helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["texts", shape.n_dims])
    whole = helper.make_graph(graph.nodes, "encoder", inputs, [vector], graph.constants)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    return model


def _encode(graph: _Graph) -> None:
    weights = graph.weights
    n_heads, n_dims = graph.shape.n_heads, graph.shape.n_dims
    graph.add_constant("scale", np.array(1.0 / sqrt(n_dims // n_heads), dtype=np.float32))
    graph.add_constant("heads", np.array([0, 0, 3, n_heads, n_dims // n_heads], dtype=np.int64))
    graph.add_constant("merged", np.array([0, 0, n_dims], dtype=np.int64))
    graph.add_constant("axis0", np.array([0], dtype=np.int64))
    graph.add_constant("axis1", np.array([1], dtype=np.int64))
    word = graph.add_constant("word", weights["embeddings.word_embeddings.weight"])
    position = graph.add_constant("position", weights["embeddings.position_embeddings.weight"]
                          + weights["embeddings.token_type_embeddings.weight"][0])
    n_tokens = graph.add("Shape", "ids", start=1, end=2)
    positions = graph.add("Slice", position, "axis0", n_tokens, "axis0")
    x = graph.add_layer_norm(graph.add("Add", graph.add("Gather", word, "ids"), positions), "embeddings.LayerNorm")
    graph.add_constant("one", np.array(1.0, dtype=np.float32))
    graph.add_constant("most", np.array(1e9, dtype=np.float32))
    graph.add_constant("axes12", np.array([1, 2], dtype=np.int64))
    graph.add_constant("axis2", np.array([2], dtype=np.int64))
    mask = graph.add("Cast", MASK, to=TensorProto.FLOAT)
    graph.padding = graph.add("Mul", graph.add("Sub", graph.add("Unsqueeze", mask, "axes12"), "one"), "most")
    for number in range(graph.shape.n_layers):
        x = graph.add_layer(x, f"encoder.layer.{number}")
    whole = graph.add("ReduceSum", graph.add("Mul", x, graph.add("Unsqueeze", mask, "axis2")), "axis1", keepdims=0)
    length = graph.add("ReduceL2", whole, "axis1", keepdims=1)
    graph.nodes.append(helper.make_node("Div", [whole, length], ["vector"], name="vector"))


def write_graph(folder: Path, graph: Path, named: str) -> None:
    """Write the graph in float32. named: the value of "weights" in its metadata."""
    model = build_graph(folder)
    helper.set_model_props(model, {"weights": named, "onnx.quant.pre_process": "onnxruntime.quant"})  # it has shapes
    onnx.save(model, str(graph))


def quantize_graph(graph: Path, small: Path) -> None:
    """Write the graph in int8, with a scale for each row of a weight."""
    quantization = import_module("onnxruntime.quantization")  # has no types
    quantization.quantize_dynamic(graph, small, weight_type=quantization.QuantType.QInt8, per_channel=True)
