"""How stages stand on each other: what a stage starts from, and when its work can be reused."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from omegaconf import OmegaConf

from pipeline import hardware, processes, trackers
from pipeline.checkpoint import State
from pipeline.config import Config, recorded
from pipeline.data import Competition, read_competition
from pipeline.encoder import Encoder, fingerprint, load_encoder
from pipeline.errors import OutOfMemory, UserError
from pipeline.hub import located
from pipeline.recipe import Recipe
from pipeline.runs import Run, claimed
from pipeline.sections import Training
from pipeline.stages import TRAINING

log = logging.getLogger(__name__)
VERSION = 8  # raise it when the same settings and data would now give another result


def read_data(config: Config) -> Competition:
    """The competition's files, checked; what is reported but not refused is said."""
    competition = read_competition(Path(config.data.dir))
    for note in competition.notes:
        log.warning("warning: %s", note)
    return competition


@dataclass(frozen=True)
class Start:
    """The encoder that a stage begins with, and what identifies it."""

    path: str
    origin: dict[str, Any]
    pooling: str = "auto"
    prefix: str = "auto"
    max_length: int = 0
    special_tokens: tuple[str, ...] = ()

    def load(self, dropout: float | None = None) -> Encoder:
        """The encoder, fresh from its folder or the Hub."""
        encoder = load_encoder(self.path, self.pooling, self.prefix, self.max_length, dropout)
        encoder.add_tokens(self.special_tokens)
        return encoder


def start_of(config: Config, stage: str) -> Start:
    """Completes or reuses the stages before this one in the chain; if none, the plain encoder."""
    unknown = [name for name in config.chain if name not in TRAINING]
    if unknown or stage not in config.chain or len(set(config.chain)) < len(config.chain):
        raise UserError(f"chain: expected distinct stages of {', '.join(TRAINING)} with {stage} "
                        f"among them, got [{','.join(config.chain)}]")
    before = config.chain[:config.chain.index(stage)]
    if before:
        run: Run = import_module(f"pipeline.stages.{before[-1]}").complete(config)
        return Start(str(run.model), {"run": run.identity})
    path, wanted = located(config.encoder.path), config.encoder
    return Start(path, {"encoder": fingerprint(path), **asdict(wanted), "path": ""},
                 wanted.pooling, wanted.prefix, wanted.max_length, tuple(wanted.special_tokens))


def recipe(settings: Training) -> Recipe:
    """The part of a stage's settings that the training loop takes."""
    return Recipe(**{item.name: getattr(settings, item.name) for item in fields(Recipe)
                     if hasattr(settings, item.name)})


def carried_out(config: Config, stage: str, data: dict[str, str], start: Start,
                work: Callable[[Run, Accelerator], State],
                measured: dict[str, Any] | None = None) -> Run:
    """The finished run of this stage: reused when everything that shapes it is the same.

    measured: what is measured besides and thus differs in the run's files, though not in its
    model; left out of the identity when it is as always.
    """
    trackers.check(config.tracker)
    device = hardware.pick_device(config.device)
    precision = hardware.pick_precision(config.precision, device)
    settings = asdict(getattr(config, stage))
    if "micro_batch" in settings:  # the whole batch's gradients however it is cut
        settings["micro_batch"] = 0
    settings.pop("teachers", None)  # they stand in data, by what they are
    shape = {"version": VERSION, "stage": stage, "settings": settings,
             "seed": config.seed, "precision": precision, "data": data, "start": start.origin,
             "trial": config.trial == "always"} | ({"measured": measured} if measured else {})
    # The accelerator comes first: under torchrun it brings the processes together.
    accelerator = hardware.start(device, precision, config.seed, config.deterministic)
    is_first = processes.rank() == 0
    with claimed(Path(config.runs_dir), config.name, shape) as run:
        is_forced = config.force and config.stage == stage
        if processes.from_first(is_first and not is_forced and run.is_complete()):
            log.info("%s: reusing %s", stage, run.folder)
            return run
        if is_first:
            if is_forced or run.manifest().get("status") not in (None, "running"):
                run.clear(kept=() if is_forced else ("folds",))  # folds look after themselves
            run.begin(OmegaConf.to_yaml(recorded(config)), config.encoder.path,
                      hardware.machine(device))
        processes.wait()
        log.info("%s: %s on %s in %s", stage, run.folder, device, precision)
        if is_first and config.tracker != "none":
            accelerator.trackers = [
                trackers.Tracker(config.tracker, run.folder, shape, run.identity)]
        try:
            state = work(run, accelerator)
        except (RuntimeError, MemoryError) as error:
            if not hardware.is_out_of_memory(error):
                raise
            raise OutOfMemory(memory_advice(config, stage, device, precision)) from error
        finally:
            for tracker in accelerator.trackers:
                tracker.finish()
        if is_first:
            run.finish(state.seconds)
        processes.wait()
    return run


def memory_advice(config: Config, stage: str, device: str, precision: str) -> str:
    """What to lower when memory did not suffice: first what keeps the run, then what begins one."""
    settings = getattr(config, stage)
    cut = getattr(settings, "micro_batch", None)
    pieces = cut or settings.batch_size
    same = "" if cut is None or pieces < 2 else (
        f"{stage}.micro_batch={pieces // 2} (the same run goes on from its last checkpoint), or ")
    lower = f"{stage}.batch_size (now {settings.batch_size})" + (
        f", encoder.max_length (now {config.encoder.max_length})")
    narrow = "" if precision != "fp32" else ", or take precision=bf16"
    return (f"{stage} on {device}: out of memory; lower {same}{lower}{narrow} (another run; "
            "finished stages before it are reused where they are the same); with more memory free "
            "the same command goes on from the last checkpoint")
