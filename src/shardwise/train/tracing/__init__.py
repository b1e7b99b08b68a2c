"""The real step under the real runtime code on fake tensors: what it holds, communicates and computes."""
