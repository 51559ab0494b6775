"""A pretrained encoder with its pooling: load, run on batches, save as a Hugging Face folder.

A saved one has its Reading beside the weights.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from pipeline import processes, sharding
from pipeline.batching import Tokens, by_tokens, tokenise
from pipeline.dropout import use_fast_dropout
from pipeline.errors import UserError
from pipeline.files import sha256, write_json
from pipeline.hardware import light_weights
from pipeline.hub import from_hub
from pipeline.packing import Batch, first_position, hidden_states, use_packing
from pipeline.reading import RECORD, Reading, reading_of

log = logging.getLogger(__name__)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class Encoder(nn.Module):
    """A backbone and a pooling: batches of token ids to vectors (N, d)."""

    def __init__(self, backbone: Any, tokenizer: Any, reading: Reading) -> None:
        super().__init__()
        self.backbone, self.tokenizer, self.reading = backbone, tokenizer, reading
        config = backbone.config
        self.width = config.hidden_size
        self.own_dropout = {name: getattr(config, name) for name in DROPOUTS
                            if hasattr(config, name)}
        # SimCSE's MLP over the first token: in contrastive training only, and never saved.
        self.mlp = (nn.Sequential(nn.Linear(self.width, self.width), nn.Tanh())
                    if reading.pooling == "cls_mlp" else None)
        self.has_types = getattr(config, "type_vocab_size", 0) > 1

    def forward(self, batch: Batch) -> Tensor:
        """The batch's sentence vectors (N, d), in its order."""
        pooling = self.reading.pooling
        last = hidden_states(self.backbone, batch, both=pooling == "first_last_mean")  # (tokens, d)
        if pooling in ("mean", "first_last_mean"):
            return torch.segment_reduce(last.float(), "mean", lengths=batch.lengths)
        cls = last[batch.lengths.cumsum(0) - batch.lengths]  # (N, d)
        if pooling == "pooler":
            return self.backbone.pooler(cls[:, None])
        return self.mlp(cls) if self.mlp is not None and self.training else cls

    def tokens(self, texts: Any, file: Path | None = None) -> Tokens:
        """Token ids of sentences or pairs, as this encoder reads them."""
        texts = list(texts) if file is None else texts
        is_pair = file is None and bool(texts) and not isinstance(texts[0], str)
        return tokenise(texts, self.tokenizer, self.reading.max_length, self.reading.prefix, file,
                        types=is_pair and self.has_types)

    def without_mlp(self) -> "Encoder":
        """This encoder, without SimCSE's MLP: a head has to learn from what it will be given."""
        self.mlp = None
        return self

    def add_tokens(self, texts: Iterable[str]) -> None:
        """Makes each text one special token, with the mean of all embeddings; known ones stay."""
        known, texts = self.tokenizer.get_vocab(), list(texts)
        if not all(text.strip() for text in texts):
            raise UserError(f"encoder.special_tokens: expected texts, got {texts}")
        new = [text for text in texts if text not in known]
        if not new:
            return
        self.tokenizer.add_tokens(new, special_tokens=True)
        rows = self.tokenizer.convert_tokens_to_ids(new)
        size = max(self.backbone.config.vocab_size, len(self.tokenizer))
        self.backbone.resize_token_embeddings(size, mean_resizing=False)
        weight = self.backbone.get_input_embeddings().weight
        with torch.no_grad():
            weight[rows] = weight[:min(rows)].mean(dim=0)

    def save(self, folder: Path) -> None:
        """Writes backbone, tokenizer and record; the caller renames the folder into place."""
        config = self.backbone.config
        in_training = {name: getattr(config, name) for name in self.own_dropout}
        for name, value in self.own_dropout.items():
            setattr(config, name, value)
        try:
            self.backbone.save_pretrained(folder)
        finally:
            for name, value in in_training.items():
                setattr(config, name, value)
        self.tokenizer.save_pretrained(folder)
        pooling = "cls" if self.reading.pooling == "cls_mlp" else self.reading.pooling
        write_json(folder / RECORD, asdict(replace(self.reading, pooling=pooling)))


def load_encoder(path: str, pooling: str = "auto", prefix: str = "auto", max_length: int = 0,
                 dropout: float | None = None) -> Encoder:
    """Loads any encoder of the Hub or of a folder; "auto" and 0 mean as the folder records it.

    dropout replaces the model's own probabilities while it trains; the saved model has its own.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    reading = reading_of(path, pooling, prefix, max_length)
    config = from_hub(AutoConfig, path)
    own = {name: getattr(config, name) for name in DROPOUTS if hasattr(config, name)}
    if dropout is not None and not own:
        raise UserError(f"dropout: expected an encoder with {' and '.join(DROPOUTS)}, got "
                        f"{path} ({config.model_type}), which has neither")
    if dropout is not None:
        for name in own:
            setattr(config, name, dropout)
    check_length(path, config, reading.max_length)
    options = pooler_option(path, config, reading.pooling)
    backbone, loading = from_hub(AutoModel, path, config=config, dtype=torch.float32,
                                 output_loading_info=True, **options)
    missing = sorted(name for name in loading["missing_keys"] if "position_ids" not in name)
    if any("pooler" not in name for name in missing):
        raise UserError(f"encoder.path={path}: expected an encoder's weights, got none for "
                        f"{missing[0]} and {len(missing) - 1} more")
    if missing:
        log.warning("warning: %s has no trained pooler: pooling=pooler starts from random weights",
                    path)
    use_fast_dropout(backbone)
    use_packing(backbone)
    tokenizer = from_hub(AutoTokenizer, path)
    if len(tokenizer) < config.vocab_size // 2:  # transformers makes an empty one without files
        raise UserError(f"encoder.path={path}: expected a tokenizer of about {config.vocab_size} "
                        f"pieces, got {len(tokenizer)}: are its tokenizer files missing?")
    encoder = Encoder(backbone, tokenizer, reading)
    encoder.own_dropout = own
    return encoder


def check_length(path: str, config: Any, max_length: int) -> None:
    """Refuses more tokens than the encoder has positions for."""
    positions = getattr(config, "max_position_embeddings", 0) - first_position(config)
    if positions > 0 and max_length > positions:
        raise UserError(f"encoder.max_length: expected {positions} or less for {path}, "
                        f"got {max_length}")


def pooler_option(path: str, config: Any, pooling: str) -> dict[str, bool]:
    """`add_pooling_layer` for the architectures that have one."""
    from transformers import MODEL_MAPPING

    takes = "add_pooling_layer" in signature(MODEL_MAPPING[type(config)].__init__).parameters
    if pooling == "pooler" and not takes:
        raise UserError(f"encoder.pooling: expected cls or mean for {path} ({config.model_type} "
                        "has no pooler), got 'pooler'")
    return {"add_pooling_layer": pooling == "pooler"} if takes else {}


def fingerprint(path: str) -> dict[str, str]:
    """What identifies an encoder: a folder's files by content, a Hub model by its commit."""
    from transformers import AutoConfig

    folder = Path(path)
    if folder.is_dir():
        return {file.name: sha256(file) for file in sorted(folder.iterdir())
                if file.suffix in (".json", ".safetensors", ".bin", ".txt", ".model")
                and file.name != "checksums.json"}
    log.info("encoder: %s, from the Hub or its cache", path)
    config = from_hub(AutoConfig, path)
    return {"hub": path, "commit": str(getattr(config, "_commit_hash", None))}


def shown(batches: list[np.ndarray], total: int, desc: str) -> Iterator[np.ndarray]:
    """This process's share of the batches, with a progress bar over rows if desc names one."""
    with tqdm(total=total, desc=desc, unit="row", disable=not desc or processes.rank() > 0,
              leave=None) as bar:  # None: not below another bar
        for rows in processes.own_of(batches):
            yield rows
            bar.update(len(rows) * processes.world())


def outputs(model: nn.Module, width: int, source: Tokens, device: torch.device,
            desc: str = "") -> np.ndarray:
    """What the model gives in eval mode for every row of source: (n, width) float32.

    source is Tokens, or anything with its len, lengths and batch. Longest first, so that memory
    peaks at the start. desc: the name of a progress bar; empty for none.
    """
    was_training = model.training
    model.eval()
    found = np.zeros((len(source), width), np.float32)
    budget = 2048 if device.type == "cpu" else 8192  # tokens; more do not fit a CPU's caches
    batches, is_sharded = list(by_tokens(source.lengths, budget)), sharding.is_sharded(model)
    # Shards cannot be gathered into inference tensors, which later training would meet again.
    with (nullcontext() if is_sharded else light_weights(model),
          torch.inference_mode(not is_sharded), torch.no_grad()):
        for rows in shown(batches, len(source), desc):
            part = model(source.batch(rows).to(device)).float().cpu().numpy()
            found[rows] = part.reshape(len(rows), width)
        if is_sharded and processes.is_idle(len(batches)):  # the others need its shards
            model(source.batch(batches[-1]).to(device))
    model.train(was_training)
    return processes.summed(found, device)


def embed(encoder: Encoder, tokens: Tokens, device: torch.device, desc: str = "") -> np.ndarray:
    """Vectors (n, d) float32 of all rows; desc: the name of a progress bar, empty for none."""
    return outputs(encoder, encoder.width, tokens, device, desc)
