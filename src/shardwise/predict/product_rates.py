"""Time of a matrix product on one part: a model of tiles and waves, corrected by the products timed nearest to it.

The model knows the part's multiprocessors; what it leaves out (the library's choice of kernel, the layout's reading
order, the best share the part reaches at all) is the ratio of measured to modelled time of timed products, interpolated
in the logarithms of tokens, output and input features for each pass. Far from every reading the median ratio of the
pass remains. What a part reaches in a burst it may not hold: a power limit caps the rate on top.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from math import exp, log, log2
from operator import itemgetter
from statistics import median

from shardwise.attention_kernels import DATACENTER_BLACKWELL
from shardwise.catalog.kernels import ProductReading, load_products
from shardwise.cluster import Dtype, Gpu
from shardwise.formulas.kernel_time import power_limited_ratio, saturation, wave_efficiency
from shardwise.predict.product_alignment import unaligned_share
from shardwise.units import Flop, FlopPerSecond, Seconds

TILES = (
    (128, 256, 1.0),
    (256, 128, 1.0),
    (128, 128, 0.92),
    (64, 256, 0.85),
    (256, 64, 0.85),
    (128, 64, 0.75),
    (64, 128, 0.75),
    (64, 64, 0.55),
)
"""Tile rows, columns and the share of the rate that the tile itself allows, the highest first: a smaller tile reads
more per FLOP (NVIDIA, Matrix Multiplication Background User's Guide). The library picks the best."""
K_HALF = 100
"""Inner length at which a product reaches half its limit: start and end of a tile's main loop. Smallest median residual
of our 3,100 products; TileLang's kernels on H800 need 258."""
FP32_TILES = (*TILES, (128, 32, 0.75), (32, 128, 0.75), (32, 32, 0.55))
"""Tiles of products on fp32 cores, which narrow ones keep busy, too: cuBLAS has sgemm kernels of 32 columns or rows,
split along the inner length where tiles are few."""
FP32_K_HALF = 7
"""Inner length at which an fp32 product reaches half its limit: start and end of a tile take as long as they do in 16
bits, while the main loop runs at a fifteenth of the rate."""
PRODUCT_START_S = 1.5e-6
"""Start and end of one kernel on the device."""
BEST_MEMORY_FRACTION = 0.89
"""Copies of 1 GiB on H100: 2.99 of 3.35 TB/s."""

NEAREST_MATRICES = 4
NEAREST = 6
"""How many nearest weights (output and input features), and nearest readings of them, a ratio is the mean of."""
NEIGHBOUR_REACH = 2.0
"""Distance, in factors of two, at which one reading weighs as much as the median of all."""
READING_NOISE = 1e-3
"""Squared distance below which readings are averaged instead of repeated: two readings of one product differ by 3 %."""

UNTABLED_FRACTION = 0.86
"""Share of a part's best shape that products of real layers hold: 0.95 on A100 PCIe, 0.86 on H100 (at its power limit)
and 0.66 on B200, each by its own table; the middle one stands for parts without a table."""
DEFAULT_GEMM_FRACTION = 0.75
"""Share that torch's own estimator uses for every part (torch ``utils/_runtime_estimation.py``)."""

IDLE_W = 127.0
SUSTAINED_W = 686.0
"""Mean draw of an H100 of 700 W at its limit (``benchmarks/results/2026-11-28-h100-power.csv``)."""
POWER_EXPONENT = 2.9
SUSTAINED_FLOP_PER_S: FlopPerSecond = 680e12
"""16-bit products of random numbers held for seconds on five H100 of 700 W, two shapes: 667 to 685 (median 680), while
bursts reach 780 (``2026-11-27-h100-gemm-sustained.csv`` and ``2026-11-28-h100-power.csv``)."""
SUSTAINED_FP8_RATIOS = (1.066, 1.012)
"""Share of their best shape that 8-bit products hold over that of 16-bit ones, forward (fast accumulation) and backward
(Transformer Engine's choice): 1,280 and 1,215 of a best 1,403 TFLOP/s against 680 of 795, medians of four shapes on one
H100 (``2026-11-28-h100-power.csv``)."""
SUSTAINED_BLACKWELL_FLOP_PER_S: FlopPerSecond = 1150e12
"""Sustained rate of B200 of 1,000 W: nine of ten products of more than 1 TFLOP in SimuMax's table stay below 0.51 of
2,250 TFLOP/s, while the first ones of each run reach 0.65 and the best shape 0.776."""
BLACKWELL_W = 1000.0
SUSTAINED_ATTENTION_RATIO = 0.79
"""Fused attention over products at the same limit: 538 against 680 TFLOP/s (FLOP of the causal half)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestShape:
    """Best share of the dense peak any matrix product was measured to reach on a part."""

    part: str
    """Catalogue id, or the beginning of an architecture name."""
    fraction: float
    fp8_fraction: float = 0.0
    """Share in 8 bits; 0 when not measured."""


BEST_SHAPES = (
    BestShape(part="a100-sxm-80", fraction=0.869),
    BestShape(part="a100-sxm-40", fraction=0.869),
    BestShape(part="a800-sxm-80", fraction=0.869),
    BestShape(part="a100-pcie-80", fraction=0.811),
    BestShape(part="h100-sxm", fraction=0.803, fp8_fraction=0.709),
    BestShape(part="h200-sxm", fraction=0.803, fp8_fraction=0.734),
    BestShape(part="gh200-96", fraction=0.837, fp8_fraction=0.776),
    BestShape(part="b200-sxm", fraction=0.776, fp8_fraction=0.763),
    BestShape(part="b300-sxm", fraction=0.786, fp8_fraction=0.745),
    BestShape(part="gb200", fraction=0.729, fp8_fraction=0.723),
    BestShape(part="rtx-4090", fraction=0.998),
    BestShape(part="rtx-5090", fraction=1.146),
    BestShape(part="mi300x", fraction=0.511),
    BestShape(part="mi325x", fraction=0.6),
    BestShape(part="mi355x", fraction=0.622),
    BestShape(part="gaudi2", fraction=0.969, fp8_fraction=0.955),
    BestShape(part="gaudi3", fraction=0.741, fp8_fraction=0.769),
    # A whole architecture takes the figure of its measured part.
    BestShape(part="Ampere GA100", fraction=0.811),
    BestShape(part="Hopper", fraction=0.803, fp8_fraction=0.709),
    BestShape(part="Blackwell Ultra", fraction=0.786, fp8_fraction=0.745),
    BestShape(part="Blackwell GB100", fraction=0.776, fp8_fraction=0.763),
)
"""stas00/ml-engineering, compute/accelerator, "maximum achievable matmul FLOPS"; GeForce from runs of one script
(zzc0721/torch-performance-test-data#78 and #96; RTX 5090 boosts above the clock of its stated peak, which no long run
is taken to exceed). Also in ``achieved.csv``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """The part whose kernels stand for an architecture."""

    archs: tuple[str, ...]
    """Beginnings of architecture names."""
    gpu_id: str
    num_sms: int
    peak_flop_per_s: FlopPerSecond
    memory_bandwidth_bytes_per_s: float
    is_sustained: bool
    """Whether the table was timed in loops long enough for power to settle; else the sustained rate caps it."""


TABLES = (
    TableChoice(
        archs=("Ampere GA100",),
        gpu_id="a100-pcie-80",
        num_sms=108,
        peak_flop_per_s=312e12,
        memory_bandwidth_bytes_per_s=1.935e12,
        is_sustained=True,
    ),
    TableChoice(
        archs=("Hopper",),
        gpu_id="h100-sxm",
        num_sms=132,
        peak_flop_per_s=989.5e12,
        memory_bandwidth_bytes_per_s=3.35e12,
        is_sustained=False,
    ),
    TableChoice(
        archs=DATACENTER_BLACKWELL,
        gpu_id="b200-sxm",
        num_sms=148,
        peak_flop_per_s=2250e12,
        memory_bandwidth_bytes_per_s=8e12,
        is_sustained=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product as a kernel computes it; ``groups`` equal ones in a grouped kernel."""

    product_pass: str
    dtype: Dtype
    m: int
    n: int
    k: int
    groups: int = 1
    is_grouped: bool = False

    @property
    def flop(self) -> Flop:
        """Multiply and add of all groups."""
        return 2.0 * self.groups * self.m * self.n * self.k

    @property
    def features(self) -> tuple[int, int]:
        """Output and input features of the weight."""
        by_pass = {"forward": (self.n, self.k), "dgrad": (self.k, self.n), "wgrad": (self.m, self.n)}
        return by_pass[self.product_pass]

    @property
    def position(self) -> tuple[float, float, float]:
        """Tokens, output and input features in factors of two; 8-bit products all run as forwards do."""
        m, n, k = log2(max(1, self.m)), log2(max(1, self.n)), log2(max(1, self.k))
        if self.dtype == "fp8" or self.product_pass == "forward":
            return m, n, k
        return (k, m, n) if self.product_pass == "wgrad" else (m, k, n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The properties of a GPU that the model of tiles and waves needs."""

    num_sms: int
    peak_flop_per_s: FlopPerSecond
    memory_bandwidth_bytes_per_s: float


def modelled_s(product: Product, machine: Machine, *, element_bytes: int = 2) -> Seconds:
    """Time of a product at the machine's full peak: tiles, waves, the main loop's ends, and the memory it moves.

    >>> from shardwise.predict.product_rates import Machine, Product, modelled_s
    >>> a100 = Machine(num_sms=108, peak_flop_per_s=312e12, memory_bandwidth_bytes_per_s=1.935e12)
    >>> sizes = [Product(product_pass="forward", dtype="bf16", m=m, n=m, k=4096) for m in (1792, 2048)]
    >>> [round(modelled_s(product, a100) * 1e6) for product in sizes]
    [97, 157]
    """
    m, n, k, groups = product.m, product.n, product.k, product.groups
    tiles, k_half = (FP32_TILES, FP32_K_HALF) if product.dtype == "fp32" else (TILES, K_HALF)
    best = 1.0 if machine.num_sms <= 1 else 0.0
    if machine.num_sms > 1:
        for tile_m, tile_n, share in tiles:
            if share <= best:  # waves are at most full, so neither this tile nor a smaller one is better
                break
            waves = wave_efficiency(m=m, n=n, tile_m=tile_m, tile_n=tile_n, num_sms=machine.num_sms, groups=groups)
            best = max(best, share * waves)
    computing_s = product.flop / (machine.peak_flop_per_s * best * saturation(x=k, half=k_half))
    moved = groups * (element_bytes * (m * k + k * n) + 2 * m * n)
    moving_s = moved / (BEST_MEMORY_FRACTION * machine.memory_bandwidth_bytes_per_s)
    return max(computing_s, moving_s) + PRODUCT_START_S


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Logarithms of measured over modelled time of one pass, by output and input features, then by tokens."""

    matrices: tuple[tuple[float, float, tuple[tuple[float, float], ...]], ...]
    typical_log_ratio: float

    def ratio(self, position: tuple[float, float, float]) -> float:
        """Measured over modelled time at a position: the nearest readings, weighted by inverse squared distance."""
        tokens, out, into = position
        matrices = [((o - out) ** 2 + (i - into) ** 2, readings) for o, i, readings in self.matrices]
        near = nsmallest(NEAREST_MATRICES, matrices, key=itemgetter(0))
        distances = [(apart + (t - tokens) ** 2, ratio) for apart, readings in near for t, ratio in readings]
        prior = 1 / NEIGHBOUR_REACH**2
        total, weights = prior * self.typical_log_ratio, prior
        for distance, ratio in nsmallest(NEAREST, distances):
            weight = 1 / (distance + READING_NOISE)
            total += weight * ratio
            weights += weight
        return exp(total / weights)


def neighbours(readings: tuple[ProductReading, ...], machine: Machine, *, element_bytes: int = 2) -> Neighbours:
    """Readings of one pass and dtype, ready to be asked for the ratio at any shape."""
    found: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for reading in readings:
        product = Product(
            product_pass=reading.product_pass,
            dtype="fp8" if reading.dtype == "fp8" else "bf16",
            m=reading.m,
            n=reading.n,
            k=reading.k,
            groups=reading.groups,
            is_grouped=reading.is_grouped,
        )
        ratio = log(reading.duration_s / modelled_s(product, machine, element_bytes=element_bytes))
        tokens, out, into = product.position
        found.setdefault((out, into), []).append((tokens, ratio))
    matrices = tuple((out, into, tuple(points)) for (out, into), points in found.items())
    return Neighbours(matrices, median(ratio for points in found.values() for _, ratio in points))


class ProductRates:
    """Times of products on one part, remembered by shape."""

    def __init__(self, gpu: Gpu, correction: Callable[[Product], float] | None = None) -> None:
        """``correction`` is what a calibration of the machine multiplies a time by."""
        self._gpu = gpu
        self._correction = correction
        self._choice = next((choice for choice in TABLES if gpu.arch.startswith(choice.archs)), None)
        self._best = best_shape(gpu)
        self._found: dict[Product, Seconds] = {}

    @property
    def table(self) -> str:
        """The part whose timed products stand for this one; empty when there is none."""
        return self._choice.gpu_id if self._choice else ""

    @property
    def has_accumulated_gradients(self) -> bool:
        """Whether the table's weight gradients were added in fp32 in place."""
        return self._choice is not None and self._choice.is_sustained

    @property
    def is_measured(self) -> bool:
        """Whether any product was timed on this part or its architecture."""
        return self._best is not None

    def duration_s(self, product: Product) -> Seconds:
        """Time of one kernel in a long run."""
        found = self._found.get(product)
        if found is None:
            correction = self._correction(product) if self._correction else 1.0
            found = self._found[product] = correction * self._time(product)
        return found

    def shortest_held_s(self, product: Product) -> Seconds:
        """Time of a product at the rate that long runs hold under the part's power limit, which short loops exceed."""
        share = sustained_share(self._gpu) * self._narrow_ratio(product)
        return product.flop / (share * self._gpu.peak_flop_per_s(product.dtype))

    def _time(self, product: Product) -> Seconds:
        gpu = self._gpu
        peak = gpu.peak_flop_per_s(product.dtype)
        machine = Machine(
            num_sms=gpu.sm_count,
            peak_flop_per_s=peak,
            memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        )
        element_bytes = {"fp8": 1, "tf32": 4, "fp32": 4}.get(product.dtype, 2)
        burst_s = modelled_s(product, machine, element_bytes=element_bytes) * self._ratio(product)
        held = min(sustained_share(self._gpu) * self._narrow_ratio(product), self._best_share(product.dtype))
        out_features, in_features = product.features
        held = min(
            held,
            unaligned_share(
                gpu,
                dtype=product.dtype,
                out_features=out_features,
                in_features=in_features,
                is_forward=product.product_pass == "forward",
            ),
        )
        return max(burst_s, product.flop / (held * peak))

    def _best_share(self, dtype: Dtype) -> float:
        """The best product found on the part, which no interpolation may beat."""
        if self._best is None or dtype not in ("bf16", "fp16", "fp8"):
            return 1.0
        return self._best.fp8_fraction or 1.0 if dtype == "fp8" else self._best.fraction

    def _narrow_ratio(self, product: Product) -> float:
        """Share of its own peak a product holds over that of 16 bits; wide ones are not known to be limited."""
        if product.dtype in ("bf16", "fp16"):
            return 1.0
        if product.dtype not in ("fp8", "fp4") or self._best is None:
            return float("inf")
        best = self._best.fp8_fraction / self._best.fraction or 1.0
        return best * SUSTAINED_FP8_RATIOS[product.product_pass != "forward"]

    def _ratio(self, product: Product) -> float:
        """Measured over modelled time."""
        if self._choice is None or product.dtype == "fp32":
            best = self._best
            share = DEFAULT_GEMM_FRACTION if best is None else UNTABLED_FRACTION * best.fraction
            if best is not None and product.dtype == "fp8" and best.fp8_fraction:
                share = UNTABLED_FRACTION * best.fp8_fraction
            return 1 / share
        own = _table(self._choice, product.product_pass, _family(product.dtype), product.is_grouped)
        scale = 1.0
        if own is None and product.dtype == "fp8":  # no grouped one was timed: single ones stand in
            own = _table(self._choice, product.product_pass, "fp8", is_grouped=False)
        if own is None:
            own = _table(self._choice, product.product_pass, "bf16", product.is_grouped)
            scale = 1 / self._narrow_ratio(product) if product.dtype == "fp8" else 1.0
        if own is None:
            return scale / DEFAULT_GEMM_FRACTION
        return scale * self._part_scale() * own.ratio(product.position)

    def _part_scale(self) -> float:
        """Best share of the part in the table over that of this part, where power does not already tell them apart."""
        if self._choice is None or not self._choice.is_sustained or self._best is None:
            return 1.0
        table = next(row for row in BEST_SHAPES if row.part == self._choice.gpu_id)
        return table.fraction / self._best.fraction


def _family(dtype: Dtype) -> str:
    return "bf16" if dtype in ("bf16", "fp16") else dtype


@cache
def _table(choice: TableChoice, product_pass: str, dtype: str, is_grouped: bool) -> Neighbours | None:
    """Readings of one pass; 8-bit products run in the forward's layout whatever the pass."""
    wanted = "forward" if dtype == "fp8" else product_pass
    readings = tuple(
        reading
        for reading in load_products(choice.gpu_id)
        if reading.product_pass == wanted and reading.dtype == dtype and reading.is_grouped == is_grouped
    )
    if not readings:
        return None
    factor = {"fp8": 2.0, "tf32": 0.5}.get(dtype, 1.0)
    machine = Machine(
        num_sms=choice.num_sms,
        peak_flop_per_s=factor * choice.peak_flop_per_s,
        memory_bandwidth_bytes_per_s=choice.memory_bandwidth_bytes_per_s,
    )
    return neighbours(readings, machine, element_bytes={"fp8": 1, "tf32": 4}.get(dtype, 2))


@cache
def product_rates(gpu: Gpu) -> ProductRates:
    """The products of a part; the same object for the same part, so that shapes are timed once."""
    return ProductRates(gpu)


def best_shape(gpu: Gpu) -> BestShape | None:
    """The best product measured on a part, else on its architecture."""
    exact = next((row for row in BEST_SHAPES if row.part == gpu.id), None)
    return exact or next((row for row in BEST_SHAPES if gpu.arch.startswith(row.part)), None)


def sustained_share(gpu: Gpu) -> float:
    """Share of the 16-bit peak that long runs of products hold under the part's power limit; 1 where unknown."""
    peak = gpu.peak_flop_per_s("bf16")
    if not peak or not gpu.arch.startswith(("Hopper", "Blackwell")):
        return 1.0
    is_hopper = gpu.arch.startswith("Hopper")
    held = SUSTAINED_FLOP_PER_S if is_hopper else SUSTAINED_BLACKWELL_FLOP_PER_S
    reference_w = 700.0 if is_hopper else BLACKWELL_W
    drawn = SUSTAINED_W / 700
    if drawn * gpu.tdp_w > IDLE_W:  # a part that draws less at its limit is not of the measured kind
        held *= power_limited_ratio(
            power_w=drawn * gpu.tdp_w, reference_w=drawn * reference_w, idle_w=IDLE_W, exponent=POWER_EXPONENT
        )
    return min(1.0, held / peak)
