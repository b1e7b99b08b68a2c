"""Sizes DeepSpeed configs derive from the model, as the integers the config demands."""


def prefetch_bucket_elements(*, hidden_size: int) -> int:
    """Elements of the ZeRO-3 prefetch bucket that Hugging Face derives for ``auto``: 0.9 * hidden_size squared, whole.

    DeepSpeed 0.15 and later refuse the fraction that the plain product leaves.

    Source: huggingface/transformers pull 36081.

    >>> prefetch_bucket_elements(hidden_size=4096)
    15099494
    """
    return 9 * hidden_size * hidden_size // 10
