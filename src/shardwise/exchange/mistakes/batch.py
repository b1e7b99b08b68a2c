"""Batch numbers that do not multiply, or that two files give differently."""

from collections.abc import Iterator

from shardwise.exchange.mistakes.rule import Case, Conditions, Found

DEEPSPEED_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _triple(case: Case) -> Iterator[Found]:
    for view in case.views("deepspeed", "gpt-neox"):
        total, micro, count = (view.number(key) for key in DEEPSPEED_BATCH)
        dp = case.number("dp")
        share = (micro or 1) * (count or 1)
        if total and (micro or count) and (total % share if not dp else (micro and count and total != share * dp)):
            ranks = f" x {dp} data ranks" if dp else ", whatever the number of data ranks"
            yield Found(
                view.by_key["train_batch_size"].place,
                f"{total} is not {micro or 1} x {count or 1}{ranks}",
                "give two of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps only",
            )


def _not_whole(case: Case) -> Iterator[Found]:
    total, micro, dp = (case.number(name) for name in ("global_batch_size", "micro_batch_size", "dp"))
    if total and micro and dp and total % (micro * dp) and not any(case.views("deepspeed", "gpt-neox")):
        yield Found(
            case.place("global_batch_size"),
            f"the global batch of {total} is no multiple of micro-batch {micro} x {dp} data ranks",
            f"a global batch of {max(1, round(total / (micro * dp))) * micro * dp}",
        )


def _deepspeed_beside_arguments(case: Case) -> Iterator[Found]:
    pairs = (
        ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("optimizer.params.lr", "learning_rate"),
        ("scheduler.params.warmup_num_steps", "warmup_steps"),
    )
    arguments = ("training-arguments", "trl", "llamafactory", "axolotl")
    for theirs, ours in pairs:
        first, second = case.fact(theirs, "deepspeed"), case.fact(ours, *arguments)
        numbers = [fact.value for fact in (first, second) if fact and isinstance(fact.value, int | float)]
        if first and second and len(numbers) == 2 and numbers[0] != numbers[1]:
            yield Found(
                first.place,
                f"the JSON says {numbers[0]}, the arguments ({second.place}) say {numbers[1]}",
                f'set {theirs} to "auto" in the JSON',
            )
    total = case.fact("train_batch_size", "deepspeed")
    micro, count = (
        case.fact(key, *arguments) for key in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    world = case.number("dp")
    if total and micro and world and isinstance(total.value, int) and isinstance(micro.value, int):
        steps = count.value if count and isinstance(count.value, int) else 1
        if total.value != micro.value * steps * world:
            yield Found(
                total.place,
                f"the JSON says {total.value} sequences a step, the arguments {micro.value * steps * world}",
                'set train_batch_size to "auto" in the JSON',
            )


def _few_microbatches(case: Case) -> Iterator[Found]:
    pp, count = case.number("pp"), case.number("num_microbatches")
    needed = pp - 1 if any(case.views("nanotron")) else pp
    if pp > 1 and 0 < count < needed:
        yield Found(
            case.place("pp"),
            f"{count} micro-batches a step for {pp} pipeline stages: stages wait, and older torch hangs",
            f"at least {needed} micro-batches: a larger global batch or a smaller micro-batch",
        )


def _microbatch_pieces(case: Case) -> Iterator[Found]:
    for view in case.views("torchtitan"):
        share, piece = (
            view.number("training.local_batch_size"),
            view.number("parallelism.pipeline_parallel_microbatch_size"),
        )
        if case.number("pp") > 1 and share and piece and share % piece:
            yield Found(
                view.by_key["parallelism.pipeline_parallel_microbatch_size"].place,
                f"local_batch_size {share} is not cut into pieces of {piece}",
                "a pipeline_parallel_microbatch_size that divides training.local_batch_size",
            )


def _interleaved_rounds(case: Case) -> Iterator[Found]:
    pp, count = case.number("pp"), case.number("num_microbatches")
    per_round = case.number("num_microbatches_per_round") or pp
    is_interleaved = case.number("vpp") > 1 and pp > 1 and any(case.views("megatron", "nemo", "megatron-bridge"))
    if is_interleaved and 0 < count % per_round < pp:
        yield Found(
            case.place("num_microbatches_per_round") or case.place("pp"),
            f"the interleaved schedule runs {count} micro-batches in rounds of {per_round}, and the last of them would "
            f"hold {count % per_round}, fewer than the {pp} stages",
            f"a global batch of a multiple of {pp} micro-batches on each data rank",
        )


def _two_schedules(case: Case) -> Iterator[Found]:
    fixed = case.fact("global_batch_size", "megatron")
    for view in case.views("megatron"):
        if fixed and "step_batch_size_schedule" in view.by_key:
            yield Found(
                view.by_key["step_batch_size_schedule"].place,
                "a schedule of batch sizes stands beside a fixed --global-batch-size",
                "drop --global-batch-size, or the schedule",
            )


def _nemo_accumulation(case: Case) -> Iterator[Found]:
    fact = case.fact("trainer.accumulate_grad_batches", "nemo")
    if fact and fact.value not in (1, None):
        yield Found(
            fact.place,
            f"accumulate_grad_batches is {fact.value}, but NeMo accumulates by model.global_batch_size",
            "trainer.accumulate_grad_batches: 1",
        )


def _bridge_lengths(case: Case) -> Iterator[Found]:
    for view in case.views("megatron-bridge"):
        for first, second in (
            ("model.seq_length", "dataset.seq_length"),
            ("train.micro_batch_size", "dataset.micro_batch_size"),
        ):
            numbers = view.number(first), view.number(second)
            if None not in numbers and numbers[0] != numbers[1]:
                yield Found(
                    view.by_key[second].place,
                    f"{second} is {numbers[1]}, {first} is {numbers[0]}",
                    f"{second}={numbers[0]}",
                )
        ends = [key for key in ("train.train_iters", "train.train_samples", "train.num_epochs") if view.value(key)]
        if len(ends) > 1:
            yield Found(view.by_key[ends[1]].place, f"{' and '.join(ends)} both end the run", f"give {ends[0]} alone")


def _generations(case: Case) -> Iterator[Found]:
    for view in case.views("trl"):
        size, micro, world = (
            view.number("num_generations"),
            view.number("per_device_train_batch_size"),
            case.number("world_size"),
        )
        steps = view.number("steps_per_generation") or view.number("gradient_accumulation_steps") or 1
        if size and micro and world and micro * world * steps % size:
            yield Found(
                view.by_key["per_device_train_batch_size"].place,
                f"{micro * world * steps} completions a step ({micro} x {world} x {steps}), and {size} are one group",
                f"per_device_train_batch_size: {-(-size // (world * steps))}, or a num_generations that divides",
            )


CONDITIONS: Conditions = (
    ("batch-triple", _triple),
    ("batch-not-whole", _not_whole),
    ("ds-hf-mismatch", _deepspeed_beside_arguments),
    ("microbatches-below-stages", _few_microbatches),
    ("local-batch-by-pieces", _microbatch_pieces),
    ("interleaved-rounds", _interleaved_rounds),
    ("two-batch-schedules", _two_schedules),
    ("accumulation-by-hand", _nemo_accumulation),
    ("sections-disagree", _bridge_lengths),
    ("generations-by-batch", _generations),
)
