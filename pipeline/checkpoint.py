"""A training state on disk: saved whole, verified by checksum, resumed exactly.

One folder `checkpoints/` holds `newest/` (everything that the next step depends on, and the history
so far) and `best/` (the weights of the best evaluation). No pickle: tensors are safetensors, the
rest is JSON.
"""

import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline import processes, sharding
from pipeline.averaging import Average
from pipeline.errors import UserError
from pipeline.files import checksums, mend, write_json, write_text, written_aside

log = logging.getLogger(__name__)


@dataclass
class State:
    """Where a training stands: what the loop carries from step to step besides tensors."""

    step: int = 0
    best: float = float("-inf")
    best_step: int = -1
    waiting: int = 0  # evaluations since the best one
    stopped_early: bool = False
    seconds: float = 0.0


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Writes tensors; shared ones are stored as often as they are named."""
    save_file({name: tensor.detach().contiguous().cpu().clone()
               for name, tensor in tensors.items()}, path)


def save_newest(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer,
                scaler: torch.amp.GradScaler | None, state: State,
                average: Average | None = None) -> None:
    """Writes `newest/`; the one before stays in place until this one is complete.

    To be called by every process: each has its own random generator, the first one writes.
    """
    own = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        own["cuda"] = torch.cuda.get_rng_state()
    random = {f"{rank}.{name}": tensor for rank, states in enumerate(processes.from_all(own))
              for name, tensor in states.items()}
    weights = sharding.whole(model.state_dict())
    moments = sharding.whole({f"{index}.{name}": torch.as_tensor(value)
                              for index, values in optimizer.state_dict()["state"].items()
                              for name, value in values.items()})
    averages = sharding.whole(average.values) if average else {}
    if processes.rank() > 0:
        return
    rest = asdict(state) | {"scaler": scaler.state_dict() if scaler else None,
                            "processes": processes.world()}
    with written_aside(folder / "newest") as aside:
        aside.mkdir()
        save_tensors(weights, aside / "model.safetensors")
        save_tensors(moments, aside / "optimizer.safetensors")
        save_tensors(random, aside / "random.safetensors")
        if average:
            save_tensors(averages, aside / "average.safetensors")
        (aside / "state.json").write_text(json.dumps(rest), encoding="utf-8")
        if (history := folder.parent / "history.jsonl").exists():
            shutil.copyfile(history, aside / "history.jsonl")
        write_json(aside / "checksums.json", checksums(aside))


def save_best(folder: Path, model: nn.Module) -> None:
    """Writes `best/`, the weights alone; every process calls it, the first one writes."""
    weights = sharding.whole(model.state_dict())
    if processes.rank() > 0:
        return
    with written_aside(folder / "best") as aside:
        aside.mkdir()
        save_tensors(weights, aside / "model.safetensors")
        write_json(aside / "checksums.json", checksums(aside))


def verified(folder: Path) -> bool:
    """Whether the folder is complete and unchanged since it was written; says so when not."""
    if not folder.is_dir():
        return False
    try:
        recorded = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        recorded = None
    found = {name: mark for name, mark in checksums(folder).items() if name != "checksums.json"}
    if recorded == found:
        return True
    wrong = [name for name in recorded or {} if found.get(name) != recorded[name]]
    log.warning("warning: checkpoint %s is damaged (%s) and is not used", folder,
                ", ".join(wrong) or "checksums.json")
    return False


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer,
            scaler: torch.amp.GradScaler | None, average: Average | None = None) -> State:
    """Loads `newest/` into model, optimizer and the rest; a fresh State without one.

    Raises UserError when the run was begun with another number of processes.
    """
    newest, best = folder / "newest", folder / "best"
    if processes.rank() == 0:
        mend(folder)
    processes.wait()
    if not verified(newest):
        return State()
    rest = json.loads((newest / "state.json").read_text(encoding="utf-8"))
    scales, begun_with = rest.pop("scaler"), rest.pop("processes")
    if begun_with != processes.world():
        raise UserError(f"{newest}: expected {begun_with} processes, as the run was begun with, "
                        f"got {processes.world()}; force=true begins it anew")
    state = State(**rest)
    if processes.rank() == 0:
        restore_history(folder)
    if state.best_step >= 0 and not verified(best):
        return State()
    sharding.load(model, load_file(newest / "model.safetensors"))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state_dict = optimizer.state_dict()
    state_dict["state"] = {}
    for name, tensor in load_file(newest / "optimizer.safetensors").items():
        index, _, leaf = name.partition(".")
        value = sharding.part(tensor, parameters[int(index)])
        state_dict["state"].setdefault(int(index), {})[leaf] = value
    optimizer.load_state_dict(state_dict)
    if average:
        average.load(load_file(newest / "average.safetensors"))
    if scaler and scales:
        scaler.load_state_dict(scales)
    random, rank = load_file(newest / "random.safetensors"), processes.rank()
    torch.set_rng_state(random[f"{rank}.cpu"])
    if f"{rank}.cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random[f"{rank}.cuda"])
    return state


def restore_history(folder: Path) -> None:
    """Makes the run's history the checkpoint's; says so where more than later lines is lost."""
    kept, own = folder / "newest" / "history.jsonl", folder.parent / "history.jsonl"
    if not kept.exists():
        return
    lines, now = kept.read_bytes(), own.read_bytes() if own.exists() else b""
    if not now.startswith(lines):
        log.warning("warning: %s is missing or damaged: restored from the checkpoint", own)
    if now != lines:
        write_text(own, lines.decode("utf-8"))


def load_best(folder: Path, model: nn.Module) -> None:
    """Loads the best evaluation's weights."""
    sharding.load(model, load_file(folder / "best" / "model.safetensors"))
