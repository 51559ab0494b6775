"""An exported folder's model as an ONNX graph beside it, for runtimes without torch.

    python run.py stage=export run=runs/sts/NAME export.dir=my-model export.onnx=true

The graph is that of sentence-transformers' model, whose attention is the library's own, with
pooling and a cross-encoder's head. Its inputs are what the folder's tokenizer gives, of any number
and length; a prefix is written before each sentence by the caller. Its outputs are
`last_hidden_state` (N, L, d), which sentence-transformers wants of an `onnx/model.onnx`, and
`sentence_embedding` (N, d) or, of a cross-encoder, `scores` (N,) from 0 to 5.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from pipeline.errors import UserError
from pipeline.hub import from_hub
from pipeline.reading import recorded

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
FILE = "onnx/model.onnx"
VALUE = {"sentence-transformers": "sentence_embedding", "cross-encoder": "scores"}
LARGEST = 1_500_000_000  # bytes of weights in the graph's own file; protobuf's limit is 2 GiB
BATCH = 32


def require_packages() -> None:
    """Refuses to start without what writes a graph and what runs it to be compared."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"export.onnx: expected the packages {', '.join(PACKAGES)}, got no "
                        f"{' and no '.join(missing)}: .venv/bin/python -m pip install "
                        f"{' '.join(missing)}")


class Graph(nn.Module):
    """A model of sentence-transformers as a function of tensors alone."""

    def __init__(self, model: nn.Module, names: list[str], value: str) -> None:
        """names: of the inputs, in their order; value: what the model makes of them."""
        super().__init__()
        self.model, self.names, self.value = model, names, value

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Token vectors (N, L, d), and sentence vectors (N, d) or scores (N,)."""
        found = self.model(dict(zip(self.names, inputs, strict=True)))
        value = found[self.value]
        return found["token_embeddings"], value.squeeze(-1) if self.value == "scores" else value


def write_graph(folder: Path, kind: str, file: Path) -> None:
    """Writes an exported folder's graph; weights too large for it lie beside, in FILE.data."""
    import sentence_transformers

    is_cross = kind == "cross-encoder"
    loader = getattr(sentence_transformers, "CrossEncoder" if is_cross else "SentenceTransformer")
    model = loader(str(folder), device="cpu").eval()
    example = ["문장 하나", "그보다 조금 더 긴 문장"]
    tokens = tokeniser(folder)(list(zip(example, example[::-1], strict=True)) if is_cross
                               else example)
    names = list(tokens)
    size = sum(weight.nbytes for weight in model.parameters())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # packages that are not needed here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                Graph(model, names, VALUE[kind]).eval(),
                tuple(torch.from_numpy(tokens[name]) for name in names),
                str(file), input_names=names,
                output_names=["last_hidden_state", VALUE[kind]],
                dynamic_shapes=(tuple({0: "batch", 1: "length"} for _ in names),),
                dynamo=True, external_data=size > LARGEST, verbose=False)
        except torch.onnx.errors.OnnxExporterError as error:
            raise UserError("export.onnx: expected an encoder that torch.onnx can write, got "
                            f"{model[0].model.config.model_type}: {str(error)[:200]}") from None


def tokeniser(folder: Path) -> Callable[[Sequence[Any]], dict[str, np.ndarray]]:
    """The folder's own tokenizer: sentences or pairs to each input (N, L) of the graph."""
    tokenizer = from_hub(AutoTokenizer, str(folder))
    longest = recorded(str(folder)).max_length
    return lambda texts: dict(tokenizer(list(texts), padding=True, truncation=True,
                                        return_tensors="np", max_length=longest))


def run_graph(folder: Path, kind: str, file: Path, texts: Sequence[Any]) -> np.ndarray:
    """The graph's vectors of sentences (n, d) or scores of pairs (n,), by onnxruntime.

    folder: the exported one, whose tokenizer reads the texts.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    tokenise, prefix = tokeniser(folder), recorded(str(folder)).prefix
    texts = [prefix + text if isinstance(text, str) else text for text in texts]
    return np.concatenate([
        session.run([VALUE[kind]], tokenise(texts[start:start + BATCH]))[0]
        for start in range(0, len(texts), BATCH)])
