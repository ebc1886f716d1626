"""What a caller can choose, stated once for the command and for Python."""

from typing import Literal, get_args

Format = Literal["onnx", "stablehlo", "safetensors"]
FORMATS: tuple[Format, ...] = get_args(Format)
# The images that go in: bytes from 0 to 255, or floats from 0 to 1.
InputDtype = Literal["uint8", "float32"]
INPUT_DTYPES: tuple[InputDtype, ...] = get_args(InputDtype)
