"""What every process of a calibration runs: ``python -m shardwise.train.calibrate.worker FOLDER DEVICE UNTIL [tiny]``.

``UNTIL`` is in seconds since the epoch. Rank 0 appends what it is doing to ``progress.jsonl`` and writes
``result.json`` last, so that an interrupted calibration leaves no result.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from shardwise.train.calibrate.arrival_skew import arrival_skew_s
from shardwise.train.calibrate.blocks import block_cases, block_row, tables_cases, tables_row
from shardwise.train.calibrate.clock import Desk, slowest, until
from shardwise.train.calibrate.groups import collective_cases, collective_row, group_tables, overlap_ratio, own_groups
from shardwise.train.calibrate.kernels import (
    attention_row,
    attention_shapes,
    copy_rates,
    disk_rates,
    launch_s,
    move_row,
    move_sizes,
    optimizer_row,
    optimizer_sizes,
    product_rows,
    product_shapes,
)
from shardwise.train.failure.keepers import end_with_keepers, keepers
from shardwise.train.group import join_group
from shardwise.train.mesh import pick_device
from shardwise.train.precision import use_fast_kernels

RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.jsonl"
TIMEOUT = timedelta(seconds=60)
SHARES = {"products": 0.26, "attention": 0.08, "memory": 0.07, "collectives": 0.24, "blocks": 0.29, "disk": 0.06}
"""Share of each table in the time that is left when the processes have met; a table lists first what decides most."""
SKEW_SHARE = 0.3
"""Share of the collectives' time that goes to calls after computation."""
Case = TypeVar("Case")
Row = Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class Session:
    """One rank's calibration while it goes on."""

    desk: Desk
    folder: Path
    started_s: float
    until_s: float
    done_fraction: float = 0.0

    def deadline_s(self, section: str) -> float:
        """When the section that begins now has to end; the sections before it may have been quicker."""
        names = list(SHARES)
        self.done_fraction = sum(SHARES[name] for name in names[: names.index(section)])
        self.say(section)
        ahead = 1 - self.done_fraction
        left_s = max(0.0, self.until_s - time.time())
        return slowest(time.time() + left_s * SHARES[section] / ahead, self.desk)

    def say(self, section: str) -> None:
        """Tell the launcher what is measured now."""
        if dist.get_rank() == 0:
            line = json.dumps({"section": section, "done_fraction": self.done_fraction})
            with (self.folder / PROGRESS_FILE).open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def measured(
    cases: Iterable[Case], measure: Callable[[Case], Iterable[Row]], session: Session, section_deadline_s: float
) -> list[Row]:
    """Every case on all ranks at once, as the median of the ranks."""
    own = [row for case in until(cases, deadline_s=section_deadline_s, desk=session.desk) for row in measure(case)]
    return median_rows(gathered(own))


def gathered(own: list[Row]) -> list[list[Row]]:
    """The rows of all ranks."""
    every: list[list[Row] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return [rows for rows in every if rows is not None]


def median_rows(every: list[list[Row]]) -> list[Row]:
    """Rows that all ranks measured alike, with the median of their seconds."""
    rows: list[Row] = []
    for together in zip(*every, strict=True):
        seconds = {
            name: median(float(str(row[name])) for row in together)
            for name in together[0]
            if name.endswith(("_s", "_ratio"))
        }
        rows.append({**together[0], **seconds})
    return rows


def measure_kernels(session: Session) -> dict[str, object]:
    """Everything one device does alone."""
    desk, found = session.desk, dict[str, object]()
    deadline_s = session.deadline_s("products")
    found["products"] = measured(product_shapes(desk), lambda shape: product_rows(shape, desk), session, deadline_s)
    deadline_s = session.deadline_s("attention")
    found["attention"] = measured(
        attention_shapes(desk), lambda shape: [attention_row(shape, desk)], session, deadline_s
    )
    deadline_s = session.deadline_s("memory")
    half_s = (deadline_s + time.time()) / 2
    found["moves"] = measured(move_sizes(desk), lambda size: [move_row(size, desk)], session, half_s)
    found["optimizer"] = measured(optimizer_sizes(desk), lambda size: [optimizer_row(size, desk)], session, deadline_s)
    single = {"kernel_launch_s": launch_s(desk), **copy_rates(desk)}
    return {**found, **median_rows(gathered([single]))[0]}


def measure_groups(session: Session) -> dict[str, object]:
    """Everything ranks do together; nothing where there is one."""
    desk = session.desk
    if dist.get_world_size() == 1:
        return {"collectives": []}
    deadline_s = session.deadline_s("collectives")
    groups = own_groups(dist.get_world_size())
    met_s = None
    if not desk.is_cuda:  # what kernels of a stream wait for each other, loops of calls show as well
        early_s = time.time() + SKEW_SHARE * max(0.0, deadline_s - time.time())
        met_s = arrival_skew_s(groups[0], desk, deadline_s=early_s)
    rows = [
        collective_row(case, desk) for case in until(collective_cases(groups, desk), deadline_s=deadline_s, desk=desk)
    ]
    return {
        "collectives": group_tables(iter(rows)),
        "overlap_slowdown_ratio": overlap_ratio(desk),
        "meeting_s": met_s,
    }


def measure_blocks(session: Session) -> dict[str, object]:
    """Our decoder's blocks, and its tables with the loss."""
    desk, found = session.desk, dict[str, object]()
    mesh = init_device_mesh(desk.device.type, (dist.get_world_size(),))
    deadline_s = session.deadline_s("blocks")
    cases = [case for case in block_cases(desk) if dist.get_world_size() > 1 or not case.is_sharded]
    early_s = deadline_s - 0.25 * max(0.0, deadline_s - time.time())
    found["blocks"] = measured(cases, lambda case: [block_row(case, desk, mesh)], session, early_s)
    found["tables"] = measured(tables_cases(desk), lambda case: [tables_row(case, desk)], session, deadline_s)
    return found


def environment(desk: Desk) -> dict[str, object]:
    """Versions and names that only torch knows here."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if not desk.is_cuda:
        return {"device": "", "versions": versions}
    versions["cuda"] = str(torch.version.cuda)
    versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {"device": torch.cuda.get_device_name(desk.device), "versions": versions}


def main(words: list[str]) -> int:
    """Measure, and let rank 0 write the result."""
    end_with_keepers(keepers())
    folder, kind, until_s = Path(words[0]), words[1], float(words[2])
    device = pick_device(kind, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    join_group(device_type=device.type, timeout=TIMEOUT)
    desk = Desk(device=device, is_tiny="tiny" in words[3:])
    session = Session(desk=desk, folder=folder, started_s=time.time(), until_s=until_s)
    with use_fast_kernels():
        found = {**measure_kernels(session), **measure_groups(session), **measure_blocks(session)}
    session.deadline_s("disk")
    if dist.get_rank() == 0:
        found.update(disk_rates(folder, desk))
        found["environment"] = environment(desk)
        (folder / RESULT_FILE).write_text(json.dumps(found) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
