"""The stages, one short file each with a `run(config)`; they alone see the configuration."""

STAGES = {
    "check": "reads the data and the environment and says what is wrong or risky",
    "fetch": "brings KLUE-STS, KorSTS, KLUE-NLI or KorNLI into the competition's layout",
    "simcse": "contrastive pretraining on the competition's sentences, without labels",
    "nli": "trains on inference pairs: entailment against contradiction, or three classes",
    "distill": "learns from finished sts runs on new pairs of the competition's sentences",
    "sts": "fine-tunes on the labelled pairs; writes dev predictions and the submission",
    "predict": "scores any CSV of pairs with a finished run (run=DIR pairs=FILE)",
    "ensemble": "blends finished sts runs; writes the submission (runs=[DIR,DIR,...])",
    "ablate": "compares chains over seeds, with significance (ablate.arms, ablate.seeds)",
    "diagnose": "a report of where and why a run is wrong (run=DIR, or runs=[A,B] side by side)",
    "compare": "encoders without fine-tuning on the same pairs: scores, geometry, probes",
    "dynamics": "follows the geometry over a grid of simcse runs; phases, what they are worth",
    "tune": "searches a stage's settings: trials, workers, pruning (tune.space, tune.trials)",
    "export": "a folder for sentence-transformers, with model card (run=DIR export.dir=DIR)",
    "board": "lists runs and submissions, records leaderboard scores, says which to submit",
    "help": "lists stages, presets and keys",
}
TRAINING = ("simcse", "nli", "distill", "sts")  # those that a chain is made of
# those that read the competition, or the sample on trial
ON_DATA = ("check", *TRAINING, "ablate", "compare", "dynamics", "ensemble", "tune")
