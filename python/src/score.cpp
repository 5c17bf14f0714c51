// score.h and masks.h: expressions with Python's operators.
#include "foveal/score.h"

#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "expression.h"
#include "float32.h"
#include "foveal/masks.h"
#include "module.h"
#include "score/negative_index.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

/// A NumPy scalar (if NumPy is loaded) as a Python number; other values unchanged.
nb::object plain_number(nb::handle value) {
  PyObject* numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
  if (!numpy || !nb::hasattr(numpy, "generic") || !nb::isinstance(value, nb::handle(numpy).attr("generic"))) return nb::borrow(value);
  return value.attr("item")();
}

/// Numbers and bools of Python and NumPy become constants. bool is tested first, since it is an int.
std::optional<Expr> convert(nb::handle given) {
  if (nb::isinstance<Expr>(given)) return nb::cast<Expr>(given);
  const nb::object value = plain_number(given);
  if (PyBool_Check(value.ptr())) return Expr(value.ptr() == Py_True);
  if (PyLong_Check(value.ptr())) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow != 0) throw nb::value_error("Expr: an integer beyond 64 bits; expected one from -2**63 to 2**63 - 1, or a real: float(x)");
    return Expr(number);
  }
  if (PyFloat_Check(value.ptr())) return Expr(nb::cast<double>(value));
  // Proxies of traced functions (trace.py).
  if (nb::hasattr(value.type(), "__score__")) return nb::cast<Expr>(value.attr("__score__")());
  return std::nullopt;
}

Expr operand(nb::handle value) {
  if (auto expr = convert(value)) return *expr;
  throw nb::next_overload();
}

Expr from_python(nb::handle value) {
  if (auto expr = convert(value)) return *expr;
  throw nb::type_error(("a score expression cannot use a value of type " + std::string(nb::str(value.type().attr("__name__")).c_str()) +
                        "; expected an expression, a number or a bool")
                           .c_str());
}

using Binary = Expr (*)(const Expr&, const Expr&);
using Unary = Expr (*)(const Expr&);

}  // namespace

void bind_score(nb::module_& m) {
  nb::enum_<Type>(m, "Type").value("boolean", Type::boolean).value("integer", Type::integer).value("real", Type::real);

  nb::class_<Expr> expr(m, "Expr", "A typed, immutable expression over score, batch, head, q_idx, kv_idx and parameters.");
  expr.def_prop_ro("type", &Expr::type)
      .def("__repr__", [](const Expr& e) { return e.present() ? to_string(e) : std::string("<absent>"); })
      .def(
          "structure",
          [](const Expr& e) {
            const std::string s = structure_of(e);
            return nb::bytes(s.data(), s.size());
          },
          "Bytes that are equal for expressions built in the same way.")
      .def("__hash__", [](const Expr& e) { return reinterpret_cast<std::uintptr_t>(e.node().get()); })
      .def("__bool__", [](const Expr&) -> bool {
        throw nb::type_error(
            "a score expression has no truth value while it is traced: write foveal.where(c, a, b) for `a if c else b`, "
            "& for `and`, | for `or`, ~ for `not`");
      });
  // For operands of other types the result is NotImplemented, so that a tensor's reflected operator can turn it into a read.
  const auto binary = [&expr](const char* name, const char* reflected, Binary fn) {
    expr.def(
        name, [fn](const Expr& a, nb::object b) { return fn(a, operand(b)); }, nb::is_operator());
    if (reflected)
      expr.def(
          reflected, [fn](const Expr& a, nb::object b) { return fn(operand(b), a); }, nb::is_operator());
  };
  binary("__add__", "__radd__", foveal::operator+);
  binary("__sub__", "__rsub__", foveal::operator-);
  binary("__mul__", "__rmul__", foveal::operator*);
  binary("__truediv__", "__rtruediv__", foveal::operator/);
  binary("__floordiv__", "__rfloordiv__", foveal::floor_div);
  binary("__mod__", "__rmod__", foveal::operator%);
  binary("__pow__", "__rpow__", foveal::pow);
  binary("__and__", "__rand__", foveal::operator&);
  binary("__or__", "__ror__", foveal::operator|);
  binary("__xor__", "__rxor__", foveal::operator^);
  binary("__lshift__", "__rlshift__", foveal::operator<<);
  binary("__rshift__", "__rrshift__", foveal::operator>>);
  binary("__eq__", nullptr, foveal::operator==);
  binary("__ne__", nullptr, foveal::operator!=);
  binary("__lt__", nullptr, foveal::operator<);
  binary("__le__", nullptr, foveal::operator<=);
  binary("__gt__", nullptr, foveal::operator>);
  binary("__ge__", nullptr, foveal::operator>=);
  expr.def("__neg__", [](const Expr& a) { return -a; });
  expr.def("__pos__", [](const Expr& a) { return a; });
  expr.def("__invert__", [](const Expr& a) { return ~a; });
  expr.def("__abs__", [](const Expr& a) { return abs(a); });

  const auto unary = [&m](const char* name, Unary fn, const char* doc) {
    m.def(
        name, [fn](nb::object x) { return fn(from_python(x)); }, nb::arg("x"), doc);
  };
  unary("abs", foveal::abs, "The absolute value; derivative 0 at 0.");
  unary("exp", foveal::exp, "e ** x.");
  unary("exp2", foveal::exp2, "2 ** x.");
  unary("log", foveal::log, "The natural logarithm.");
  unary("log2", foveal::log2, "The logarithm to base 2.");
  unary("sqrt", foveal::sqrt, "The square root.");
  unary("rsqrt", foveal::rsqrt, "1 / sqrt(x).");
  unary("tanh", foveal::tanh, "The hyperbolic tangent.");
  unary("sigmoid", foveal::sigmoid, "1 / (1 + exp(-x)).");
  unary("sin", foveal::sin, "The sine.");
  unary("cos", foveal::cos, "The cosine.");
  unary("tan", foveal::tan, "The tangent.");
  unary("erf", foveal::erf, "The error function.");
  unary("floor", foveal::floor, "The largest integer not above x, as a real; derivative 0.");
  unary("stop_gradient", foveal::stop_gradient, "x, treated as a constant by differentiation, including parameters read in x.");
  unary("to_real", foveal::to_real, "x as a real.");
  unary("to_integer", foveal::to_integer, "x truncated towards zero; derivative 0.");
  unary("to_int32", foveal::to_int32, "The low 32 bits of an integer, sign-extended.");
  unary("to_boolean", foveal::to_boolean, "x != 0.");
  unary("to_float32", foveal::to_float32, "The nearest number of float32, as a real; derivative 1.");
  unary("to_bfloat16", foveal::to_bfloat16, "The nearest number of bfloat16, as a real; derivative 1.");
  unary("to_float16", foveal::to_float16, "The nearest number of float16, as a real, infinite beyond 65504; derivative 1.");
  const auto function2 = [&m](const char* name, Binary fn, const char* doc) {
    m.def(
        name, [fn](nb::object a, nb::object b) { return fn(from_python(a), from_python(b)); }, nb::arg("a"), nb::arg("b"), doc);
  };
  function2("minimum", foveal::min, "The smaller one; at a tie the derivative is split evenly.");
  function2("maximum", foveal::max, "The larger one; at a tie the derivative is split evenly.");
  function2("floor_div", foveal::floor_div, "Python's a // b.");
  function2("pow", foveal::pow, "a ** b.");
  m.def(
      "where", [](nb::object c, nb::object a, nb::object b) { return where(from_python(c), from_python(a), from_python(b)); },
      nb::arg("condition"), nb::arg("if_true"), nb::arg("if_false"), "if_true where the condition holds, if_false elsewhere.");
  m.def(
      "wrapped_index", [](const Expr& index, std::int64_t size) { return scoring::wrapped_index(index, size); }, nb::arg("index"),
      nb::arg("size"), "index, or size + index where it is negative.");
  m.def(
      "constant", [](nb::object x) { return from_python(x); }, nb::arg("value"), "A number or a bool as an expression.");

  nb::class_<Param>(m, "Param", "A named tensor that a score or mask reads.")
      .def(nb::init<std::string, std::vector<std::int64_t>, Type>(), nb::arg("name"), nb::arg("shape"), nb::arg("type") = Type::real)
      .def_prop_ro("name", [](const Param& p) { return p.name(); })
      .def_prop_ro("shape", [](const Param& p) { return p.shape(); })
      .def_prop_ro("type", [](const Param& p) { return p.type(); })
      .def("read", [](const Param& p, const std::vector<nb::object>& index) {
        std::vector<Expr> exprs;
        exprs.reserve(index.size());
        for (const nb::object& i : index) exprs.push_back(from_python(i));
        return p.read(std::move(exprs));
      });

  m.attr("score") = nb::cast(symbols::score);
  m.attr("batch") = nb::cast(symbols::batch);
  m.attr("head") = nb::cast(symbols::head);
  m.attr("q_idx") = nb::cast(symbols::q_idx);
  m.attr("kv_idx") = nb::cast(symbols::kv_idx);
  m.attr("seqlen_q") = nb::cast(symbols::seqlen_q);
  m.attr("seqlen_kv") = nb::cast(symbols::seqlen_kv);

  m.def("causal", &causal, "kv_idx <= q_idx (top-left aligned when the lengths differ)");
  m.def("causal_bottom_right", &causal_bottom_right, "kv_idx <= q_idx + (seqlen_kv - seqlen_q)");
  m.def("window", &window, nb::arg("w"), "abs(q_idx - kv_idx) <= w");
  m.def("prefix_lm", &prefix_lm, nb::arg("prefix"), "kv_idx < prefix | kv_idx <= q_idx");
  m.def("dilated", &dilated, nb::arg("w"), nb::arg("d"), "window(w) and abs(q_idx - kv_idx) % d == 0");
  m.def("alibi", &alibi, nb::arg("heads"), "score + (kv_idx - q_idx) * 2 ** (-8 * (head + 1) / heads)");
  m.def("softcap", &softcap, nb::arg("cap"), "cap * tanh(score / cap)");
  m.def("fold_batch", &fold_batch, nb::arg("expr"), nb::arg("batch"), nb::arg("folded"));
  m.def("params_of", &params_of, nb::arg("expr"), "The names of the parameters that it reads.");
  m.def("index_symbols", &index_symbols, nb::arg("exprs"), nb::arg("param"));
  m.def("float32_where_deciding", &float32_where_deciding, nb::arg("expr"), nb::arg("singles"));
  m.def("float64_sums", &float64_sums, nb::arg("expr"), nb::arg("doubles"));
  m.def("of_shard", &of_shard, nb::arg("expr"), nb::arg("origins"), nb::arg("shards"));
  m.def(
      "parse", [](const std::string& text, const std::vector<Param>& params) { return parse(text, params); }, nb::arg("text"),
      nb::arg("params") = std::vector<Param>{}, "Parse the text form of an expression.");
}

}  // namespace foveal::python
