"""Backward passes in C++, as an operation and called directly: python -m benchmarks.custom_functions.in_cpp.

Needs a compiler and ninja; building takes a minute.
"""

import argparse

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

import limpid

FUNCTION = """
struct %(name)s : public torch::autograd::Function<%(name)s> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    auto x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * %(slope)s};
  }
};
torch::Tensor %(called)s(const torch::Tensor& x) { return %(name)s::apply(x); }
"""
SOURCE = (
    "#include <torch/extension.h>\n"
    + FUNCTION % {"name": "Right", "slope": "x * x", "called": "right"}
    + FUNCTION % {"name": "Wrong", "slope": "x", "called": "wrong"}
    + """
torch::Tensor cube(const torch::Tensor& x) { return x * x * x; }
TORCH_LIBRARY(limpid_in_cpp, library) {
  library.def("right(Tensor x) -> Tensor");
  library.def("wrong(Tensor x) -> Tensor");
  library.def("without(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(limpid_in_cpp, Autograd, library) { library.impl("right", right); library.impl("wrong", wrong); }
TORCH_LIBRARY_IMPL(limpid_in_cpp, CPU, library) { library.impl("right", cube); library.impl("wrong", cube); }
TORCH_LIBRARY_IMPL(limpid_in_cpp, CompositeImplicitAutograd, library) { library.impl("without", cube); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("right", right); module.def("wrong", wrong); }
"""
)


def main() -> None:
    """Build them, and print what is said of each."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    module = load_inline("limpid_in_cpp", [SOURCE], extra_cflags=["-O0"])
    library = torch.ops.limpid_in_cpp
    called = {
        "operation, right": library.right, "operation, wrong": library.wrong, "an overload": library.wrong.default,
        "operation without a backward of its own": library.without, "called directly": module.wrong,
    }  # fmt: skip
    for name, function in called.items():
        net = nn.Linear(4, 4)
        with limpid.recording(net) as recorded:
            function(net(torch.randn(3, 4))).square().sum().backward()
        found = recorded.verify().adjoints
        print(f"{name}: {found[0] if found else 'nothing to hold against its forward pass'}")


if __name__ == "__main__":
    main()
