// foveal._core: bindings of the public headers. Tracing and framework adapters are written in Python on top of it.
#include "module.h"

#include "foveal/foveal.h"
#include "foveal/version.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // plans live in module-level caches until the process ends
  m.doc() = "The compiled part of foveal. Use the functions of the package `foveal` instead.";
  m.attr("__version__") = FOVEAL_VERSION;

  // invalid_argument becomes ValueError, unsupported NotImplementedError.
  static nb::object base = nb::exception<foveal::Error>(m, "Error", PyExc_RuntimeError);
  base.attr("__doc__") =
      "What is neither a wrong call (ValueError) nor an impossible one (NotImplementedError): a failed compilation, a device error.";
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const foveal::Error& e) {
      PyErr_SetString(e.code() == foveal::ErrorCode::invalid_argument ? PyExc_ValueError
                      : e.code() == foveal::ErrorCode::unsupported    ? PyExc_NotImplementedError
                                                                      : base.ptr(),
                      e.what());
      if (dynamic_cast<const foveal::python::ErrorOfAllRanks*>(&e) == nullptr) return;
      nb::python_error raised;
      raised.value().attr("of_all_ranks") = true;
      raised.restore();
    }
  });
  foveal::python::bind_score(m);
  foveal::python::bind_attention(m);
  foveal::python::bind_check(m);
  foveal::python::bind_mask(m);
  foveal::python::bind_context(m);
  foveal::python::bind_jax(m);
}
