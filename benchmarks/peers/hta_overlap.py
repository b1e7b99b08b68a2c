"""Overlap and communication kernels by Holistic Trace Analysis, run by its own Python; prints one JSON object.

Usage: python hta_overlap.py TRACE
"""

import json
import sys
from collections.abc import Mapping

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """Print what HTA finds."""
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
    answer: Mapping[str, object] = {
        "overlap_percent": float(analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
