"""The command line: python run.py stage=STAGE [preset=NAME] [key=value ...]

    python run.py help

Exit codes: 0 done, 1 a failure inside (traceback in the run's log.txt), 2 bad input (one line on
stderr), 130 or 143 stopped by Ctrl-C or SIGTERM (the same command goes on).
"""

import errno
import logging
import os
import sys
from importlib import import_module

from pipeline.errors import NotFinite, OutOfMemory, Stopped, UserError, nearest

BLAMELESS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR,
             errno.EEXIST, errno.ENAMETOOLONG, errno.EISDIR}


def main(words: list[str]) -> int:
    """Runs the stage that the words ask for and returns the exit code."""
    from pipeline.layers import load
    from pipeline.stages import ON_DATA, STAGES

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("pipeline").setLevel(logging.INFO)
    if not words or words[0] in ("help", "-h", "--help"):
        words = ["stage=help", *words[1:]]
    try:
        if bare := [word for word in words if word in STAGES]:
            raise UserError(f"argument {bare[0]!r}: expected stage={bare[0]}")
        config = load(words)
        if config.stage not in STAGES:
            raise UserError(f"stage: expected one of {', '.join(STAGES)}, got {config.stage!r}"
                            f"{nearest(config.stage, list(STAGES))}")
        if config.trial == "always" and config.stage in ON_DATA:
            print(f"trial: running on the bundled sample {config.data.dir} with preset "
                  f"{config.preset or 'none'}")
        import_module(f"pipeline.stages.{config.stage}").run(config)
    except UserError as error:
        return say(error, 2)
    except BrokenPipeError:  # `python run.py help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in BLAMELESS:
            raise
        return say(f"{error.filename or config.runs_dir}: {error.strerror}", 2)
    except (NotFinite, OutOfMemory) as error:
        return say(error, 1)
    except (RuntimeError, MemoryError) as error:  # outside training, where no key helps
        from pipeline.hardware import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        return say(f"stage={config.stage}: out of memory; free some, or take device=cpu or a "
                   "smaller encoder", 1)
    except Stopped as error:
        return say(error, 128 + error.number)
    except KeyboardInterrupt:
        return say("stopped by Ctrl-C: the same command goes on from the last checkpoint", 130)
    return 0


def say(words: object, code: int) -> int:
    """One line on stderr; returns the exit code."""
    print("error:", " ".join(str(words).split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
