"""The process that evaluates: `python -m engines.evaluate`, started by `bulkhead eval`.

Reads its job as one JSON line from stdin and tells how it goes as JSON lines on stdout: progress,
and at the end a result, the prompts' faults, or an error. It ends when its stdin does. What a
prompt says appears in no line, and in no traceback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from typing import Any, TextIO

from engines import registry
from engines.api import EngineError


def main() -> int:
    """Do one job. Returns the exit code: 1 if there is no result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is our parent's: it ends us
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - logs aren't progress
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        evaluate = registry.evaluator(job["engine"])
        result = evaluate(job, lambda *stage: _tell(told, stage=stage))
    except EngineError as error:
        _tell(told, error=str(error), faults=getattr(error, "faults", []))
        return 1
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - its message may hold what a prompt says
        _tell(told, error=f"{type(error).__name__} at {_place(error)}", faults=[])
        return 1
    _tell(told, result=result)
    return 0


def _tell(told: TextIO, **line: Any) -> None:
    told.write(json.dumps(line) + "\n")
    told.flush()


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _end_with_parent() -> None:
    while os.read(0, 4096):  # not through sys.stdin, whose lock would hold up our end
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
