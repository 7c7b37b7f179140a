"""One entry: ops, the kernels that they are at given shapes, and the derivative of one."""
