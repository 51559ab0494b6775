"""Brings public Korean data into the competition's layout.

    python run.py stage=fetch fetch.name=korsts
    python run.py stage=fetch fetch.name=kornli fetch.dir=data/nli
    python run.py stage=fetch fetch.name=klue-sts fetch.files=[klue-sts-v1.1_dev.json,…]
"""

import logging
from pathlib import Path

from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.files import write_text
from pipeline.public import SOURCES, from_files, from_hub, nli_layout, sts_layout, write_sts

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Writes the data set and says its files, sizes, origin and licence."""
    name, settings = config.fetch.name, config.fetch
    source, folder = SOURCES[name], Path(settings.dir or f"data/{name}")
    if folder.is_dir() and any(folder.glob("*.csv")):
        raise UserError(f"fetch.dir: expected a folder without CSVs, got {folder}, which has some")
    log.info("%s: %s, licence %s", name, f"{len(settings.files)} files" if settings.files
             else source.size, source.licence)
    parts = (from_files([Path(file) for file in settings.files]) if settings.files
             else from_hub(name))
    if source.is_nli:
        for part, table in nli_layout(parts).items():
            write_text(folder / f"{part}.csv", table.to_csv(index=False, lineterminator="\n"))
        use = f"data.nli_dir={folder}"
    else:
        write_sts(sts_layout(parts, name, config.seed), folder)
        use = f"data.dir={folder}"
    for file in sorted(folder.glob("*.csv")):
        lines = file.read_text(encoding="utf-8").count("\n") - 1
        log.info("  %s: %d rows, %.1f MB", file, lines, file.stat().st_size / 1e6)
    log.info("use it with %s", use)
