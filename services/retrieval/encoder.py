"""The encoder of a BERT model as a graph of ONNX, computed by onnxruntime.

    embedded -> norm -> layers x (attention, feed-forward; each added and normalised) -> pooled -> unit length

Texts are packed, not padded: all tokens of a pass are the rows of one matrix. `mask` keeps the texts apart: attention
adds 0 between tokens of one text, and minus infinity between those of two. `pool` has a row for each text: the weight
of each token in the text's vector. The graph is the same for one text and for many, and for each pooling.

The graph is built from the weights when the model is loaded, in about a second, so no other file has to be kept. It
uses standard operators only; onnxruntime fuses them, and packs the matrices for the processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from services.retrieval.modelfolder import DIMENSIONS, Pooling, Shape
from services.retrieval.weights import Floats

Indices = NDArray[np.intp]

OPSET = 23  # of the standard operators: the first one with Attention
IR_VERSION = 11  # of the file format
MASKED = np.float32(-np.inf)
LOG_ERRORS = 3
KINDS = ("weight", "bias")
PARTS = ("query", "key", "value")
NAMES = {  # in the graph, and in files
    "attention": "attention.output.dense",
    "attention.norm": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "narrow.norm": "output.LayerNorm",
}


class Encoder:
    """Unit vectors of packed texts. One pass at a time; a pass does not hold the interpreter's lock."""

    def __init__(self, tensors: Mapping[str, Floats], shape: Shape, *, threads: int) -> None:
        """Raises KeyError with the name of a missing tensor."""
        onnxruntime = _quiet_runtime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = LOG_ERRORS
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads sleep
        content = graph_of(tensors, shape).SerializeToString()
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._pooling = shape.pooling

    def run(self, embedded: Floats, lengths: Sequence[int]) -> Floats:
        """One unit vector for each text, in order, of the rows of their tokens one after the other."""
        owner = np.repeat(np.arange(len(lengths)), lengths)
        mask = np.where(owner == owner[:, None], np.float32(0), MASKED)
        pool = _POOLS[self._pooling](owner, np.asarray(lengths))
        unit: Floats = self._session.run(None, {"embedded": embedded, "mask": mask, "pool": pool})[0]
        return unit


def _quiet_runtime() -> Any:
    """The package onnxruntime. It reports its use to its makers unless this is set before it is loaded."""
    os.putenv("ORT_DISABLE_TELEMETRY", "1")
    onnxruntime: Any = import_module("onnxruntime")
    onnxruntime.set_default_logger_severity(LOG_ERRORS)
    return onnxruntime


def _means(owner: Indices, lengths: Indices) -> Floats:
    is_own = owner == np.arange(len(lengths))[:, None]
    means: Floats = is_own.astype(np.float32) / lengths.astype(np.float32)[:, None]
    return means


def _firsts(owner: Indices, lengths: Indices) -> Floats:
    firsts = np.zeros((len(lengths), len(owner)), np.float32)
    firsts[np.arange(len(lengths)), np.cumsum(lengths) - lengths] = 1
    return firsts


_POOLS: Mapping[Pooling, Callable[[Indices, Indices], Floats]] = {"mean": _means, "cls": _firsts}


def graph_of(tensors: Mapping[str, Floats], shape: Shape) -> ModelProto:
    """The model with its weights. Raises KeyError with the name of a missing tensor."""
    held = dict(_held(tensors, shape))
    held["batch_axis"] = np.zeros(1, np.int64)
    graph = helper.make_graph(
        list(_nodes(shape)), "encoder",
        [_matrix("embedded", "token", DIMENSIONS), _matrix("mask", "token", "token"), _matrix("pool", "text", "token")],
        [_matrix("unit", "text", DIMENSIONS)],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _matrix(name: str, rows: str, columns: str | int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, columns])


def _nodes(shape: Shape) -> Iterator[NodeProto]:
    yield _node("LayerNormalization", ("embedded", "norm.weight", "norm.bias"), "0.x", epsilon=shape.epsilon)
    for layer in range(shape.layers):
        yield from _block(layer, shape)
    yield _node("MatMul", ("pool", f"{shape.layers}.x"), "pooled")
    yield _node("LpNormalization", ("pooled",), "unit", axis=1, p=2)


def _block(layer: int, shape: Shape) -> Iterator[NodeProto]:
    """From `layer`.x to the x of the next one. Attention wants a batch axis, here of one."""
    x, attended, out = f"{layer}.x", f"{layer}.attended", f"{layer + 1}.x"
    yield _linear(layer, "qkv", x)
    yield _node("Unsqueeze", (f"{layer}.qkv", "batch_axis"), f"{layer}.qkv3")
    yield helper.make_node("Split", [f"{layer}.qkv3"], [f"{layer}.{part}" for part in PARTS], axis=2, num_outputs=3)
    yield _node(
        "Attention", (*(f"{layer}.{part}" for part in PARTS), "mask"), f"{layer}.mixed3",
        q_num_heads=shape.heads, kv_num_heads=shape.heads,
    )  # fmt: skip
    yield _node("Squeeze", (f"{layer}.mixed3", "batch_axis"), f"{layer}.mixed")
    yield _linear(layer, "attention", f"{layer}.mixed")
    yield from _added(layer, "attention", x, attended, shape)
    yield _linear(layer, "wide", attended)
    yield _node("Gelu", (f"{layer}.wide",), f"{layer}.active")
    yield _linear(layer, "narrow", f"{layer}.active")
    yield from _added(layer, "narrow", attended, out, shape)


def _linear(layer: int, name: str, x: str) -> NodeProto:
    """Files hold (out, in)."""
    return _node("Gemm", (x, f"{layer}.{name}.weight", f"{layer}.{name}.bias"), f"{layer}.{name}", transB=1)


def _added(layer: int, name: str, x: str, out: str, shape: Shape) -> Iterator[NodeProto]:
    """What the layer made is added to its input, and normalised."""
    norm = f"{layer}.{name}.norm"
    yield _node("Add", (f"{layer}.{name}", x), f"{norm}.sum")
    yield _node("LayerNormalization", (f"{norm}.sum", f"{norm}.weight", f"{norm}.bias"), out, epsilon=shape.epsilon)


def _node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, list(inputs), [output], **attributes)


def _held(tensors: Mapping[str, Floats], shape: Shape) -> Iterator[tuple[str, Floats]]:
    """The weights by their names in the graph."""
    yield from _pair(tensors, "norm", "embeddings.LayerNorm")
    for layer in range(shape.layers):
        theirs = f"encoder.layer.{layer}"
        for kind in KINDS:
            parts = [tensors[f"{theirs}.attention.self.{part}.{kind}"] for part in PARTS]
            yield f"{layer}.qkv.{kind}", np.concatenate(parts)
        for ours, name in NAMES.items():
            yield from _pair(tensors, f"{layer}.{ours}", f"{theirs}.{name}")


def _pair(tensors: Mapping[str, Floats], ours: str, theirs: str) -> Iterator[tuple[str, Floats]]:
    for kind in KINDS:
        yield f"{ours}.{kind}", tensors[f"{theirs}.{kind}"]
