"""The plain target: plans run launch by launch, kernels by the loop language's interpreter."""
