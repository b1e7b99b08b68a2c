"""Stragglers by Holistic Trace Analysis, run by its own Python; prints one JSON object.

Usage: python hta_stragglers.py TRACE_OF_RANK_0 TRACE_OF_RANK_1 ...
"""

import json
import sys

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """Print what HTA finds."""
    analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
    found = analysis.get_potential_stragglers(num_candidates=1)
    print(json.dumps({"stragglers": [int(rank) for rank in found]}))


if __name__ == "__main__":
    main()
