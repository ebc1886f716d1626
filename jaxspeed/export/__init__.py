"""Trained models as ONNX, StableHLO and safetensors."""
