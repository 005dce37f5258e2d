// The same operation as a Python extension module: its kernels are capsules, so no path is needed.
//
//     c++ -O3 -shared -fPIC -std=c++17 $(python -m pybind11 --includes) -I FOLDER
//         -o softclip_kernels$(python3-config --extension-suffix) kernels_pybind.cpp
//
// FOLDER is what `python -c "import weft as wf; print(wf.custom.include_folder())"` prints.
// nanobind is used alike: nb::capsule(function, "weft_kernel_1").
#include <pybind11/pybind11.h>

#include <cmath>
#include <exception>
#include <stdexcept>

#include "weft_kernel.h"

namespace {

template <typename Real>
void softclip(weft_context *context, const weft_buffer &x, const weft_buffer &y) {
  const Real limit = static_cast<Real>(weft_real(context, "limit", 1.0));
  if (!(limit > 0)) throw std::invalid_argument("limit must be positive");
  const Real *from = static_cast<const Real *>(x.data);
  Real *to = static_cast<Real *>(y.data);
  for (int64_t i = 0, n = weft_elements(&x); i < n; ++i) to[i] = limit * std::tanh(from[i] / limit);
}

// Exceptions end here: none may leave a kernel.
template <typename Real>
int guarded(weft_context *context, const weft_buffer *operands, const weft_buffer *results) {
  try {
    softclip<Real>(context, operands[0], results[0]);
    return WEFT_OK;
  } catch (const std::exception &error) {
    return weft_fail(context, error.what());
  }
}

pybind11::capsule kernel(weft_kernel function) {
  static_assert(WEFT_KERNEL_ABI == 1, "the capsule's name says the version of the interface");
  return pybind11::capsule(reinterpret_cast<void *>(function), "weft_kernel_1");
}

}  // namespace

PYBIND11_MODULE(softclip_kernels, module) {
  module.attr("f32") = kernel(guarded<float>);
  module.attr("f64") = kernel(guarded<double>);
}
