"""Facts: what models are made of and what GPUs can do, each with its source."""

from kvplan.catalog.architecture import KvGroup, LayerKind, ModelConfig, Quantization, StateSpace
from kvplan.catalog.gpu import Gpu, gpu_names, load_gpu
from kvplan.catalog.model import load_model, model_names

__all__ = [
    "Gpu",
    "KvGroup",
    "LayerKind",
    "ModelConfig",
    "Quantization",
    "StateSpace",
    "gpu_names",
    "load_gpu",
    "load_model",
    "model_names",
]
