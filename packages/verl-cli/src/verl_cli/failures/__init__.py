"""What becomes of an exception: a paragraph for a failure that is known, a file with the traceback for any other.

`during` notes on an exception where in the run it happened, `explain` tells it, `record_failure` keeps it. Nothing here
imports torch or another heavy library: an exception of theirs can only exist where they are loaded already.
"""

from verl_cli.failures.explain import defect, explain
from verl_cli.failures.log import record_failure
from verl_cli.failures.place import Place, during, place_of

__all__ = ["Place", "defect", "during", "explain", "place_of", "record_failure"]
