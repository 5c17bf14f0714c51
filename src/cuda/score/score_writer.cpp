#include "cuda/score/score_writer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>

#include "cuda/device/args.cuh"
#include "cuda/jit/source.h"
#include "score/bounds.h"
#include "score/op_table.h"

namespace foveal::cuda {
namespace {

/// Independent of the locale.
std::string number_text(double x) {
  if (x == 0 && std::signbit(x)) return "-0.0";  // -0 would be an integer without a sign
  char digits[40];
  return {digits, std::to_chars(digits, digits + sizeof digits, x, std::chars_format::general, 17).ptr};
}

std::string literal(double x) { return base::join("real(", number_text(x), ")"); }

}  // namespace

std::string Writer::body(const std::vector<ValueId>& outputs) const {
  const auto needed = forms_.needed_for(outputs);
  std::string text;
  for (ValueId id = 0; id < needed.size(); ++id) {
    if (!needed[id]) continue;
    std::string value = given_text(id);
    if (value.empty()) value = value_text(id);
    if (forms_.is_double(id)) {
      text += base::join("  const double w", id, " = ", value, ";\n");
      value = base::join("real(w", id, ")");
    }
    text += base::join("  const ", type_text(id), " v", id, " = ", value, ";\n");
  }
  return text;
}

std::string Writer::given_text(ValueId id) const {
  const auto find = [&](const char* name, const std::vector<ValueId>& values) {
    const auto found = std::find(values.begin(), values.end(), id);
    return found == values.end() ? std::string() : base::join("at.", name, "[", found - values.begin(), "]");
  };
  for (const auto& [name, values] : {std::pair{"walk", &forms_.given().lines.walk},
                                     {"diagonal", &forms_.given().lines.diagonal},
                                     {"row", &forms_.given().rows},
                                     {"loaded", &forms_.given().pair_reads},
                                     {"tiled", &forms_.given().tiled}})
    if (std::string text = find(name, *values); !text.empty())
      return program()[id].type == Type::integer ? base::join("__float_as_int(", text, ")") : text;
  return forms_.given().tanh == id ? "at.tanh" : "";
}

const char* Writer::type_text(ValueId id) const {
  switch (program()[id].type) {
    case Type::boolean:
      return "bool";
    case Type::integer:
      return forms_.is_wide(id) ? "i64" : "int";
    case Type::real:
      return "real";
  }
  return "";
}

std::optional<std::size_t> Writer::number_of(double x) const {
  constexpr double cheap[] = {0, 0.5, 1, 2};  // as literals
  if (!problem().numbers || !forms_.regroups() || std::find(std::begin(cheap), std::end(cheap), std::abs(x)) != std::end(cheap)) return {};
  const auto number = static_cast<float>(x);
  if (!std::isnormal(number)) return {};
  std::vector<float>& numbers = *problem().numbers;
  const auto found = std::find(numbers.begin(), numbers.end(), number);
  const auto place = static_cast<std::size_t>(found - numbers.begin());
  if (found != numbers.end()) return place;
  if (numbers.size() == static_cast<std::size_t>(device::kMaxNumbers)) return {};
  numbers.push_back(number);
  return place;
}

bool Writer::must_be_literal(ValueId constant) const {
  return forms_.decides(constant) || std::any_of(program().code.begin(), program().code.end(),
                                                 [&](const Instr& instr) { return instr.op == Op::pow && instr.arg[1] == constant; });
}

std::string Writer::real_text(double x) const {
  if (std::isnan(x)) return "real(__int_as_float(0x7fc00000))";
  if (std::isinf(x)) return x > 0 ? "real(infinity())" : "real(-infinity())";
  if (const auto place = number_of(x)) return base::join("args.number[", *place, "]");
  return literal(x);
}

std::string Writer::table_read_text(const Instr& instr, std::size_t table) const {
  const int bytes = 4 * forms_.given().tables[table].copies;
  const auto element = element_by_lines(instr, true);
  if (!element) return base::join("load_table(at.table[", table, "], ", bytes, " * (", element_text(instr, true), "))");
  const auto load = [&](const std::string& row, const std::string& column) {
    return base::join("load_table(fv_kept(at.table[", table, "] + ", bytes, " * (", row, ")), ", column, ")");
  };
  std::string text = load(element->row, base::join("fv_kept(", bytes, " * (", element->column, "))"));
  const auto& steps = element->steps;
  if (!steps) return text;
  std::string blocks;
  for (const std::int64_t block : steps->blocks) blocks += base::join(", ", block);
  return base::join("(fv_steps_apart(at.key_block", blocks, ") ? ",
                    load(base::join(element->row, " + ", steps->origin), base::join(bytes, " * (", steps->step, ")")), " : ", text, ")");
}

std::string Writer::read_text(ValueId id) const {
  const Instr& instr = program()[id];
  const std::vector<ReadTable>& tables = forms_.given().tables;
  const auto table = std::find_if(tables.begin(), tables.end(), [&](const ReadTable& known) { return known.read == id; });
  if (table != tables.end()) return table_read_text(instr, static_cast<std::size_t>(table - tables.begin()));
  const char* load = instr.type == Type::real && !forms_.is_double(id) ? "fv_load" : "fv_load_exact";
  const std::string text = base::join(load, "<", jit::device_type(problem().param(instr.param).tensor.dtype), ">(args.param[", instr.param,
                                      "].data, ", offset_text(instr), ")");
  return instr.type == Type::boolean ? base::join(text, " != 0") : text;
}

std::string Writer::value_text(ValueId id) const {
  const Instr& instr = program()[id];
  if (forms_.is_in_double(id) && instr.op != Op::read && instr.op != Op::to_integer) return operation_text(id);
  switch (instr.op) {
    case Op::real_const:
      return std::isfinite(instr.real) && must_be_literal(id) ? literal(instr.real) : real_text(instr.real);
    case Op::integer_const:
      if (instr.integer == std::numeric_limits<std::int64_t>::min())
        return "(-9223372036854775807ll - 1)";  // its digits are too large for C
      return base::join(forms_.is_wide(id) ? "i64(" : "int(", instr.integer, forms_.is_wide(id) ? "ll)" : ")");
    case Op::boolean_const:
      return instr.integer ? "true" : "false";
    case Op::score:
      return "score";
    case Op::batch:
      return "at.batch";
    case Op::head:
      return "at.head";
    case Op::q_idx:
      return "at.q";
    case Op::kv_idx:
      return "at.kv";
    case Op::seqlen_q:
      return "at.seqlen_q";
    case Op::seqlen_kv:
      return "at.seqlen_kv";
    case Op::read:
      return read_text(id);
    case Op::to_real:
      if (!forms_.is_small_integer(instr.arg[0])) return base::join("real(v", instr.arg[0], ")");
      if (const auto sum = forms_.sum_of_places(instr.arg[0])) {
        const auto [origin, step] = places_text(*sum);
        return base::join("(fv_small_integer(", origin, ") + fv_small_integer(", step, "))");
      }
      return base::join("fv_small_integer(v", instr.arg[0], ")");
    case Op::to_integer:
      if (forms_.is_wide(id))
        return base::join("fv_truncated<i64>(", forms_.is_in_double(id) ? double_text(instr.arg[0]) : base::join("v", instr.arg[0]), ")");
      return operation_text(id);
    case Op::add:
    case Op::sub:
      if (const auto sum = forms_.sum_of_lines(id)) return text_of(lines_text(id, *sum));
      if (const auto sum = forms_.sum_of_places(id)) {
        const auto [origin, step] = places_text(*sum);
        return base::join("(", origin, " + (", step, "))");
      }
      return operation_text(id);
    case Op::mul:
    case Op::div:
    case Op::neg:
      if (const Product product = forms_.product_of(id); product.rest != std::vector{id}) return product_text(product);
      return operation_text(id);
    case Op::pow: {  // products are as exact as their factors, and exact for small integers; squares are products already
      const Instr& exponent = program()[instr.arg[1]];
      const std::string x = base::join("v", instr.arg[0]), square = base::join("(", x, " * ", x, ")");
      if (exponent.op == Op::real_const && exponent.real == 3) return base::join("(", square, " * ", x, ")");
      if (exponent.op == Op::real_const && exponent.real == 4) return base::join("(", square, " * ", square, ")");
      return operation_text(id);
    }
    case Op::exp:
    case Op::sigmoid:
    case Op::tanh:
      if (forms_.regroups() && !forms_.decides(id) && !forms_.is_uniform(id)) {
        const auto [rest, factor] = rest_and_factor(forms_.product_of(instr.arg[0]));
        if (!factor.empty()) return base::join("fv_", scoring::row(instr.op).text, "(", rest, ", ", factor, ")");
      }
      return operation_text(id);
    default:
      return operation_text(id);
  }
}

std::string Writer::double_text(ValueId arg) const {
  const Instr& instr = program()[arg];
  if (forms_.is_double(arg)) return base::join("w", arg);
  if (instr.op == Op::real_const && std::isfinite(instr.real)) return base::join("double(", number_text(instr.real), ")");
  return base::join("double(v", instr.op == Op::to_real ? instr.arg[0] : arg, ")");
}

std::string Writer::operation_text(ValueId id) const {
  const Instr& instr = program()[id];
  if ((instr.op == Op::floor_div || instr.op == Op::mod) && instr.type == Type::integer) {
    const Interval &a = forms_.bounds(instr.arg[0]), &b = forms_.bounds(instr.arg[1]);
    if (a.low >= 0 && b.low > 0 && scoring::fits_32_bits(a) &&
        scoring::fits_32_bits(b))  // one instruction for a power of two, three for others
      return base::join("int(u32(v", instr.arg[0], instr.op == Op::mod ? ") % u32(v" : ") / u32(v", instr.arg[1], "))");
  }
  const scoring::OpRow& row = scoring::row(instr.op);
  const int first = row.arity == 3 ? 1 : 0;  // a select's condition has no say
  const Type operands = program()[instr.arg[static_cast<std::size_t>(first)]].type;
  const std::string_view form = operands == Type::real && !row.cuda_real.empty() ? row.cuda_real : row.cuda_integer;
  if (form.empty()) base::fail(ErrorCode::compile_failed, "operation ", row.text, " has no CUDA form for ", to_string(operands));
  bool wide = forms_.is_wide(id);
  for (int a = first; a < row.arity; ++a) wide = wide || forms_.is_wide(instr.arg[static_cast<std::size_t>(a)]);
  const bool in_double = forms_.is_in_double(id),
             exact = forms_.decides(id) && row.gpu.approximate && !in_double;  // of two functions of float
  std::string text;
  for (std::size_t c = 0; c < form.size(); ++c) {
    if (form[c] != '$') {
      if (exact && form[c] == '(') text += "<false>";
      text.push_back(form[c]);
      continue;
    }
    const int which = form[++c] - '0';
    const ValueId arg = instr.arg[static_cast<std::size_t>(which)];
    if (in_double && program()[arg].type == Type::real) {
      text += double_text(arg);
      continue;
    }
    const bool widen = wide && which >= first && program()[arg].type == Type::integer && !forms_.is_wide(arg);
    text += widen ? base::join("i64(v", arg, ")") : base::join("v", arg);
  }
  return text;
}

}  // namespace foveal::cuda
