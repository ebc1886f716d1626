"""ONNX graphs of the shipped models."""
