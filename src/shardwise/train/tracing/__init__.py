"""The real step under the real runtime code on fake tensors and a fake process group: what it holds, says and computes."""
