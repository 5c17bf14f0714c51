"""Tracing of functions written with torch: FlexAttention's score_mod and mask_mod run unchanged on symbols.

A symbol (symbol.py) is a tensor of expressions with torch's shape and dtype. Every call of torch on one (dispatch.py) is first made on meta tensors
(meta.py): torch itself checks the arguments and says the shape and dtype of the result. What the call means for expressions stands in a table
(table.py), whose rows are in a file for each family of functions; a function or an argument that is not there is refused. A symbol in a torch call is
noticed through __torch_function__; a captured tensor indexed with a symbol through a TorchFunctionMode (mode.py), and so are elements of tensors that
become Python numbers. What is noted meanwhile is in state.py; the tracer (tracer.py) brings these together.
"""

from .symbol import Symbol
from .tracer import TorchTracer

__all__ = ["Symbol", "TorchTracer"]
