"""What the machine can do: device, precision, threads, seeds."""

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from torch import nn
from transformers import PretrainedConfig

from pipeline import processes, sharding
from pipeline.errors import UserError


def pick_device(device: str) -> str:
    """cuda, mps or cpu, the best there is for "auto"."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(),
             "cpu": True}
    if device == "auto":
        return next(name for name, is_there in there.items() if is_there)
    if not there[device]:
        raise UserError(f"device: expected one of this machine's "
                        f"({', '.join(name for name in there if there[name])}), got {device!r}")
    return device


def computes_bf16(device: str) -> bool:
    """Whether bf16 is native: elsewhere it is emulated and far slower than fp32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu" and platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def pick_precision(precision: str, device: str) -> str:
    """fp32, bf16 or fp16: for "auto" bf16 where native, fp16 on older cuda cards, else fp32."""
    if precision == "fp16" and device != "cuda":
        raise UserError(f"precision: expected bf16 or fp32 on {device}, got 'fp16'")
    if precision != "auto":
        return precision
    if computes_bf16(device):
        return "bf16"
    return "fp16" if device == "cuda" else "fp32"


def start(device: str, precision: str, seed: int, deterministic: bool) -> Accelerator:
    """Seeds everything and returns the accelerator for the device and precision.

    Under torchrun or accelerate launch it joins the processes; each has its own dropout masks, and
    only the first one speaks.
    """
    is_sharded = sharding.wanted()
    if is_sharded and precision == "fp16":
        raise UserError("precision: expected bf16 or fp32 under FSDP, got fp16")
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    # accelerate keeps one state a process; stages of one chain may differ in precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    with sharding.hidden():
        accelerator = Accelerator(mixed_precision="no" if precision == "fp32" else precision,
                                  cpu=device == "cpu")
    if is_sharded and processes.world() == 1:
        raise UserError("accelerate's configuration: expected several processes for FSDP, got 1 "
                        "(--num_processes)")
    set_seed(seed + processes.rank())
    if processes.rank() > 0:
        logging.getLogger("pipeline").setLevel(logging.ERROR)
    return accelerator


@contextmanager
def light_weights(model: nn.Module) -> Iterator[None]:
    """The transformers model within in bf16 for the while, where a CPU's autocast is bf16.

    autocast alone keeps what is between the matrix products in fp32 and casts it, and every weight,
    anew at each product. Only for reading: heads stay as they are, gradients would be lost.
    """
    from transformers import PreTrainedModel  # seconds, which stage=check does without

    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    own = {p: p.data for part in parts for p in part.parameters() if p.device.type == "cpu"}
    is_bf16 = (torch.is_autocast_enabled("cpu")
               and torch.get_autocast_dtype("cpu") == torch.bfloat16)
    try:
        for p in own if is_bf16 else ():
            p.data = p.data.bfloat16()
        yield
    finally:
        for p, data in own.items():
            p.data = data


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave no more memory: torch has a class for it on cards alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in (
            "DefaultCPUAllocator", "MPS backend out of memory", "std::bad_alloc")))


def free_memory(device: str) -> int:
    """Bytes free on the device; on a CPU, of the machine."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    import psutil

    return psutil.virtual_memory().available


def training_memory(config: PretrainedConfig, tokens: int, bytes_each: int) -> int:
    """A rough estimate of the bytes that training takes with so many tokens in a step.

    fp32 weights, gradients and AdamW's two moments (16 bytes a parameter), and per token and layer
    about 34 hidden widths of activations (Korthikanti et al. 2022, section 4.1, without the
    quadratic part, which scaled-dot-product attention does not store).
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", 4 * width)
    parameters = config.vocab_size * width + layers * (4 * width * width + 2 * width * inner)
    return 16 * parameters + tokens * layers * 34 // 2 * width * bytes_each


def machine(device: str) -> dict[str, str | int]:
    """What a run was computed on, for its manifest."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
    return {"device": device, "processor": name or platform.machine(),
            "threads": torch.get_num_threads()}
