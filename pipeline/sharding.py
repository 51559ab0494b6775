"""FSDP: a model's parameters, gradients and optimizer state in shards over several processes.

    accelerate launch --use_fsdp --fsdp_version 2 --num_processes 2 run.py stage=sts

accelerate's configuration asks for it, torch's `fully_shard` (FSDP2) does it, on cards and on CPUs
alike: accelerate's own call takes cards alone. What touches shards (forward, `whole`, `load`) is
collective: every process has to do it, as often as the others. Unsharded, all of this does nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from pipeline import processes
from pipeline.errors import UserError

ASKED = "ACCELERATE_USE_FSDP"
# What of accelerate's configuration decides more than this module does: what it may say, and what
# accelerate takes an unset one for.
ALLOWED = {
    "FSDP_VERSION": ({"2"}, "1"),
    "FSDP_OFFLOAD_PARAMS": ({"false"}, "false"),
    "FSDP_ACTIVATION_CHECKPOINTING": ({"false"}, "false"),
    "FSDP_AUTO_WRAP_POLICY": ({"transformer_based_wrap", "no_wrap"}, "no_wrap"),
    "FSDP_IGNORED_MODULES": ({"none"}, "none"),
}


def wanted() -> bool:
    """Whether accelerate's configuration asks for FSDP; refuses what of it is not supported."""
    if os.environ.get(ASKED, "false").lower() != "true":
        return False
    for name, (allowed, unset) in ALLOWED.items():
        value = os.environ.get(name, unset).lower()
        if value not in allowed:
            raise UserError(f"accelerate's configuration: expected {name.lower()} "
                            f"{' or '.join(sorted(allowed))}, got {value}")
    return True


@contextmanager
def hidden() -> Iterator[None]:
    """Keeps accelerate from FSDP of its own, which `shard` stands for.

    Nor does transformers load weights in the first process alone (accelerate's efficient loading):
    it would leave the others' empty, and all of them are read here.
    """
    asked = os.environ.pop(ASKED, None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ[ASKED] = asked
            os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def shard(model: nn.Module, device: torch.device, half: bool) -> None:
    """Leaves each process its part of the first one's weights, on its device.

    half: bf16 in computing and gathering weights; shards and gradients stay fp32. Layers are
    gathered one at a time. A module that adds no parameters to its encoder is none of the units:
    a bi head's evaluation enters at the encoder, and FSDP has to be entered at its root.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else None,
                                  reduce_dtype=torch.float32, cast_forward_inputs=False)
    reshard = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() == "true"
    options = {"mesh": init_device_mesh(device.type, (processes.world(),)), "mp_policy": policy,
               "reshard_after_forward": reshard}
    weights = model.state_dict()  # keeps the whole tensors alive until they are dealt out
    inner = getattr(model, "encoder", model)
    root = inner if len(list(inner.parameters())) == len(list(model.parameters())) else model
    for layers in [module for module in root.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            fully_shard(layer, **options)
    fully_shard(root, **options)
    load(model, weights)  # a new head's weights differ between processes


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` has been here."""
    if processes.world() == 1:
        return False
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def plain(tensor: Tensor) -> Tensor:
    """The tensor, gathered if it is in shards."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def norms(tensors: list[Tensor]) -> list[float]:
    """Euclidean norms of tensors, all in shards or none of them; one exchange and one wait."""
    if not tensors:
        return []
    parts = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    squares = torch.stack([torch.linalg.vector_norm(part.detach(), dtype=torch.float32)
                           for part in parts]).square()
    found = squares.cpu().numpy()
    if parts[0] is not tensors[0]:
        found = processes.summed(found, squares.device)
    return np.sqrt(found).tolist()


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, those in shards gathered one by one into the first process's main memory.

    The other processes take part and get nothing of them.
    """
    found = {}
    for name, tensor in tensors.items():
        full = plain(tensor)
        if full is tensor:
            found[name] = tensor
        elif processes.rank() == 0:
            found[name] = full.cpu()
    return found


def part(tensor: Tensor, like: Tensor | None) -> Tensor:
    """The first process's tensor dealt out as `like` is, if that is in shards."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements)


def load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads whole tensors into a model, in shards or not."""
    there = model.state_dict()
    model.load_state_dict({name: part(tensor, there.get(name)) for name, tensor in weights.items()})


def gather(model: nn.Module) -> None:
    """Makes a sharded model an ordinary one on the first process's CPU, to be saved; not to run."""
    if not is_sharded(model):
        return
    for name, tensor in whole(model.state_dict()).items():
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        if leaf in module._parameters:
            module._parameters[leaf] = nn.Parameter(tensor)
