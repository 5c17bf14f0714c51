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
      switch (e.code()) {
        case foveal::ErrorCode::invalid_argument:
          PyErr_SetString(PyExc_ValueError, e.what());
          break;
        case foveal::ErrorCode::unsupported:
          PyErr_SetString(PyExc_NotImplementedError, e.what());
          break;
        default:
          PyErr_SetString(base.ptr(), e.what());
      }
    }
  });
  foveal::python::bind_score(m);
  foveal::python::bind_attention(m);
  foveal::python::bind_check(m);
  foveal::python::bind_mask(m);
  foveal::python::bind_context(m);
  foveal::python::bind_jax(m);
}
