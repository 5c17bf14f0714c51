#include "cuda/score_writer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>

#include "cuda/device/args.cuh"
#include "score/bounds.h"
#include "score/op_table.h"

namespace foveal::cuda {
namespace {

/// What the type of a parameter's tensor says about its values.
class TypeRanges : public scoring::ReadRanges {
 public:
  explicit TypeRanges(const Problem& problem) : problem_(problem) {}
  Interval range(std::int32_t param, std::span<const Interval>) const override {
    return scoring::range_of(problem_.params[static_cast<std::size_t>(param)].tensor.dtype);
  }

 private:
  const Problem& problem_;
};

/// All pairs of a problem.
scoring::Box whole_problem(const Problem& p) {
  const auto last = [](std::int64_t count) { return static_cast<double>(std::max<std::int64_t>(count, 1) - 1); };
  const auto first_q = static_cast<double>(p.first_position_q()), first_kv = static_cast<double>(p.first_position_kv());
  const auto length = [](bool varies, std::int64_t n) { return Interval{varies ? 0.0 : static_cast<double>(n), static_cast<double>(n)}; };
  return {.batch = {0, last(p.batch)},
          .head = {0, last(p.heads_q)},
          .q_idx = {p.any_length ? std::min(first_q, 0.0) : first_q, first_q + last(p.positions_q())},
          .kv_idx = {first_kv, first_kv + last(p.positions_kv())},
          .seqlen_q = length(p.varlen, p.seqlen_q),
          .seqlen_kv = length(p.ragged_kv() || p.any_length, p.seqlen_kv)};
}

/// Whatever the process's locale is.
std::string number_text(double x) {
  if (x == 0 && std::signbit(x)) return "-0.0";  // -0 would be an integer without a sign
  char digits[40];
  return {digits, std::to_chars(digits, digits + sizeof digits, x, std::chars_format::general, 17).ptr};
}

std::string literal(double x) { return base::join("real(", number_text(x), ")"); }

}  // namespace

const char* device_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "double";
    case DType::f32:
      return "float";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i64:
      return "i64";
    case DType::i32:
      return "int";
    case DType::i16:
      return "short";
    case DType::i8:
      return "signed char";
    case DType::u8:
    case DType::boolean:
      return "unsigned char";
  }
  return "";
}

std::vector<Interval> bounds_of(const Program& program, const Problem& p) {
  return scoring::evaluate(program, whole_problem(p), TypeRanges(p));
}

Writer::Writer(const Problem& problem, const Program& program, const Given& given)
    : problem_(problem),
      program_(program),
      given_(given),
      bounds_(bounds_of(program, problem)),
      linear_(scoring::linear_forms(program)),
      forms_(scoring::column_forms(program, problem.attention.kv_offset)),
      decides_(scoring::deciding_reals(program, false)),
      regroups_(size_of(problem.dtype) == 2) {}

std::string Writer::body(const std::vector<ValueId>& outputs) const {
  std::vector<bool> needed(program_.code.size(), false);
  for (const ValueId output : outputs) needed[at(output)] = true;
  for (std::size_t i = program_.code.size(); i-- > 0;) {
    if (!needed[i] || !given_text(i).empty()) continue;
    const Instr& instr = program_.code[i];
    for (const ValueId arg : instr.arg)
      if (arg >= 0) needed[at(arg)] = true;
    for (const ValueId index : instr.index) needed[at(index)] = true;
  }
  std::string text;
  for (std::size_t i = 0; i < program_.code.size(); ++i) {
    if (!needed[i]) continue;
    const std::string line = given_text(i);
    text += base::join("  const ", type_text(i), " v", i, " = ", line.empty() ? value_text(i) : line, ";\n");
  }
  return text;
}

Writer::Apart Writer::apart_from_constant(ValueId id) const {
  const Product product = product_of(id);
  if (!scales(product) || is_score(product)) return {base::join("v", id)};
  const std::string constant = real_text(product.constant);
  if (is_multiple_of_tanh(product)) return {"at.tanh", constant};
  return {product_text({1.0, product.factors, product.rest}), constant};
}

Writer::Apart Writer::apart_from_uniform(ValueId id) const {
  if (!given_text(at(id)).empty()) return {base::join("v", id)};
  if (regroups_ && is_uniform(id)) return {"1", base::join("v", id), {id}};
  const Product product = product_of(id);
  const auto [rest, uniform] = rest_and_factor(product);
  if (uniform.empty()) return {rest};
  return {rest, uniform, factors_of(product)};
}

Writer::Apart Writer::slope_apart_from_uniform(ValueId id) const {
  const Apart apart = apart_from_uniform(id);
  const auto of_head = [&](ValueId value) { return (program_.depends[at(value)] & scoring::depends_head) != 0; };
  const bool differs =
      problem_.heads_q != problem_.heads_kv && std::any_of(apart.uniform_needs.begin(), apart.uniform_needs.end(), of_head);
  return differs ? Apart{base::join("v", id)} : apart;
}

Writer::Apart Writer::factor_apart_from_uniform(ValueId id) const {
  if (!given_text(at(id)).empty()) return {base::join("v", id)};
  Product product = product_of(id);
  const Instr& sum = program_.code[at(product.rest[0])];
  if (product.rest.size() == 1 && sum.op == Op::add && sum.type == Type::real && given_text(at(product.rest[0])).empty()) {
    Product first, second;
    multiply(first, sum.arg[0]);
    multiply(second, sum.arg[1]);
    if (const double constant = second.constant; std::isnormal(constant) && constant != 1) {
      first.constant /= constant;
      second.constant = 1;
      product.constant *= constant;
      return {base::join("(", product_text(first), " + ", product_text(second), ")"), product_text({product.constant, product.factors, {}}),
              factors_of(product)};
    }
  }
  return apart_from_uniform(id);
}

std::optional<Writer::ScoreSum> Writer::sum_with_score(ValueId id) const {
  struct Term {
    ValueId value;
    bool negative;
  };
  std::vector<Term> offsets;
  std::optional<Product> score;
  if (!regroups_) return {};
  while (!score) {  // along what depends on the score: what else is added up stays as it is
    const Instr& sum = program_.code[at(id)];
    if ((sum.op != Op::add && sum.op != Op::sub) || sum.type != Type::real || !given_text(at(id)).empty()) return {};
    const bool less = sum.op == Op::sub;
    const bool first = (program_.depends[at(sum.arg[0])] & scoring::depends_score) != 0;
    const ValueId on = sum.arg[first ? 0 : 1], other = sum.arg[first ? 1 : 0];
    if (program_.depends[at(other)] & scoring::depends_score || (less && !first)) return {};
    offsets.push_back({other, less});
    if (const Product product = product_of(on); is_score(product)) score = product;
    id = on;
    if (problem_.pass == Pass::backward) break;
  }
  if (!score) return {};
  constexpr int most = 6;
  int operations = 0;
  for (const Term& term : offsets) operations += operations_of_pairs(term.value);
  ScoreSum found{.gain = {"", rest_and_factor(*score).second, factors_of(*score)},
                 .is_long = problem_.pass == Pass::forward && operations > most,
                 .gain_is_plain = scales(*score) && score->factors.empty() && score->constant >= 1};
  const auto rank = [&](const Term& term) {
    const Varies over = scoring::varies(program_, term.value);
    return over == Varies::uniform || over == Varies::row ? 0 : forms_[at(term.value)].run > 0 ? 1 : 2;
  };
  if (offsets.size() > 1) std::stable_sort(offsets.begin(), offsets.end(), [&](const Term& a, const Term& b) { return rank(a) < rank(b); });
  for (const Term& term : offsets) {
    ScoreSum::Offset offset{apart_from_uniform(term.value), "1", term.value};
    if (offsets.size() > 1 && !is_uniform(term.value)) {
      std::vector<ValueId> factors{term.value};
      if (given_text(at(term.value)).empty()) std::tie(offset.row, offset.apart.rest, factors) = row_and_rest(product_of(term.value));
      if (factors.size() == 1 && scoring::varies(program_, factors[0]) == Varies::column) offset.column = factors[0];
    }
    if (term.negative) offset.apart.uniform = base::join("-(", offset.apart.uniform, ")");
    found.offsets.push_back(offset);
  }
  return found;
}

int Writer::operations_of_pairs(ValueId id) const {
  std::vector<bool> needed(program_.code.size(), false);
  needed[at(id)] = true;
  int count = 0;
  for (std::size_t i = at(id) + 1; i-- > 0;) {
    const Instr& instr = program_.code[i];
    if (!needed[i] || instr.type != Type::real || scoring::varies(program_, static_cast<ValueId>(i)) != Varies::pair) continue;
    count += instr.op == Op::read ? 0 : 1;
    for (const ValueId arg : instr.arg)
      if (arg >= 0) needed[at(arg)] = true;
  }
  return count;
}

std::tuple<std::string, std::string, std::vector<ValueId>> Writer::row_and_rest(const Product& product) const {
  std::string row, rest;
  std::vector<ValueId> factors;
  const auto times = [](std::string& text, ValueId id) { text += base::join(text.empty() ? "v" : " * v", id); };
  for (const ValueId id : product.rest) {
    const Instr& instr = program_.code[at(id)];
    const bool apart = instr.op == Op::mul && instr.type == Type::real && given_text(at(id)).empty() && !decides_[id];
    for (const ValueId factor : apart ? std::vector{instr.arg[0], instr.arg[1]} : std::vector{id}) {
      const bool of_row = scoring::varies(program_, factor) == Varies::row;
      times(of_row ? row : rest, factor);
      if (!of_row) factors.push_back(factor);
    }
  }
  if (row.empty() || rest.empty()) return {"1", base::join("(", rest_and_factor({1.0, {}, product.rest}).first, ")"), factors};
  return {base::join("(", row, ")"), base::join("(", rest, ")"), factors};
}

std::optional<ValueId> Writer::tanh_of_score() const {
  std::optional<ValueId> found;
  for (std::size_t i = 0; i < program_.code.size(); ++i) {
    if (program_.code[i].op != Op::tanh || !is_score(product_of(program_.code[i].arg[0]))) continue;
    if (found) return {};
    found = static_cast<ValueId>(i);
  }
  return regroups_ ? found : std::nullopt;
}

std::string Writer::tanh_factor(ValueId tanh) const {
  const ValueId argument = program_.code[at(tanh)].arg[0];
  return body({argument}) + base::join("  return ", rest_and_factor(product_of(argument)).second, ";\n");
}

std::string Writer::tanh_times(ValueId value) const {
  const Product product = product_of(value);
  if (!is_multiple_of_tanh(product) || product.factors.empty()) return "  return 1;\n";
  return body(factors_of(product)) + base::join("  return ", rest_and_factor({1.0, product.factors, {}}).second, ";\n");
}

bool Writer::is_straight(ValueId value) const {
  const Product product = product_of(value);
  if (product.rest.size() != 1) return false;
  const Instr& rest = program_.code[at(product.rest[0])];
  if (rest.op != Op::to_real || !is_small_integer(rest.arg[0])) return false;
  const auto sum = sum_of(rest.arg[0]);
  return sum && std::all_of(sum->terms.begin(), sum->terms.end(), [&](const auto& term) { return is_uniform(term.first); });
}

std::int64_t Writer::entries_of(const Instr& instr, std::size_t dimension, bool padded) const {
  const std::int64_t size = problem_.params[static_cast<std::size_t>(instr.param)].param.shape()[dimension];
  return padded ? table_row_entries(problem_, instr.index, dimension, size) : size;
}

std::string Writer::element_text(const Instr& instr, bool padded) const {
  if (const auto lines = element_by_lines(instr, padded)) return text_of(*lines);
  const auto param = static_cast<std::size_t>(instr.param);
  std::string element;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    if (!is_pair_dimension(program_, instr.index[d])) continue;
    const Interval& bounds = bounds_[at(instr.index[d])];
    const bool inside = padded && bounds.low >= 0 && bounds.high < static_cast<double>(entries_of(instr, d, true));
    const std::string index = inside ? base::join("int(v", instr.index[d], ")") : index_text(instr.index[d], param, d);
    element = element.empty() ? index : base::join("(", element, ") * ", entries_of(instr, d, padded), " + ", index);
  }
  return element.empty() ? "0" : element;
}

std::string Writer::index_text(ValueId index, std::size_t param, std::size_t dimension) const {
  const auto& size = problem_.params[param].param.shape()[dimension];
  const Interval& bounds = bounds_[at(index)];
  if (bounds.low >= 0 && bounds.high <= static_cast<double>(size - 1)) return base::join("int(v", index, ")");
  return base::join("fv_clamp(v", index, ", args.param[", param, "].size[", dimension, "])");
}

std::string Writer::given_text(std::size_t i) const {
  const auto find = [&](const char* name, const std::vector<ValueId>& values) {
    const auto found = std::find(values.begin(), values.end(), static_cast<ValueId>(i));
    return found == values.end() ? std::string() : base::join("at.", name, "[", found - values.begin(), "]");
  };
  for (const auto& [name, values] : {std::pair{"walk", &given_.lines.walk},
                                     {"diagonal", &given_.lines.diagonal},
                                     {"row", &given_.rows},
                                     {"loaded", &given_.pair_reads},
                                     {"tiled", &given_.tiled}})
    if (std::string text = find(name, *values); !text.empty())
      return program_.code[i].type == Type::integer ? base::join("__float_as_int(", text, ")") : text;
  return given_.tanh == static_cast<ValueId>(i) ? "at.tanh" : "";
}

bool Writer::is_uniform(ValueId id) const { return scoring::varies(program_, id) == Varies::uniform; }

std::vector<ValueId> Writer::factors_of(const Product& product) {
  std::vector<ValueId> ids;
  for (const Product::Factor& factor : product.factors) ids.push_back(factor.id);
  return ids;
}

Writer::Product Writer::product_of(ValueId id) const {
  Product product;
  multiply(product, id, true);
  return product;
}

void Writer::multiply(Product& product, ValueId id, bool whole) const {
  const Instr& instr = program_.code[at(id)];
  const auto [a, b, unused] = instr.arg;
  const bool divides = instr.op == Op::div, multiplies = instr.op == Op::mul && instr.type == Type::real;
  // NOLINTNEXTLINE(bugprone-branch-clone): the branches stand in the order in which they are asked
  if (!regroups_ || decides_[id] || is_uniform(id) || !(whole || given_text(at(id)).empty())) {
    product.rest.push_back(id);
  } else if (instr.type == Type::real && instr.op == Op::neg) {
    product.constant = -product.constant;
    multiply(product, a);
  } else if (multiplies && is_uniform(a)) {
    multiply_uniform(product, a, false);
    multiply(product, b);
  } else if ((multiplies || divides) && is_uniform(b)) {
    multiply_uniform(product, b, divides);
    multiply(product, a);
  } else if (multiplies && (has_uniform_factor(a) || has_uniform_factor(b))) {
    multiply(product, a);
    multiply(product, b);
  } else {
    product.rest.push_back(id);
  }
}

bool Writer::has_uniform_factor(ValueId id) const {
  const Product product = product_of(id);
  return product.constant != 1 || !product.factors.empty();
}

void Writer::multiply_uniform(Product& product, ValueId id, bool divides) const {
  const Instr& value = program_.code[at(id)];
  if (value.op == Op::real_const) {
    product.constant = divides ? product.constant / value.real : product.constant * value.real;
    constexpr double rounding = 4 * std::numeric_limits<double>::epsilon();  // what is multiplied and divided by goes away
    if (std::abs(product.constant - 1) <= rounding) product.constant = 1;
  } else if (value.op == Op::div && program_.code[at(value.arg[0])].op == Op::real_const) {
    multiply_uniform(product, value.arg[0], divides);
    multiply_uniform(product, value.arg[1], !divides);
  } else {
    const auto opposite = std::find_if(product.factors.begin(), product.factors.end(),
                                       [&](const Product::Factor& factor) { return factor.id == id && factor.divides != divides; });
    if (opposite != product.factors.end()) {
      product.factors.erase(opposite);
    } else {
      product.factors.push_back({id, divides});
    }
  }
}

std::pair<std::string, std::string> Writer::rest_and_factor(const Product& product) const {
  std::string rest, uniform;
  const auto times = [](std::string& text, const std::string& factor) { text += (text.empty() ? "" : " * ") + factor; };
  for (const ValueId id : product.rest) {
    const bool score = program_.code[at(id)].op == Op::score;
    times(rest, score ? "score.raw" : base::join("v", id));
    if (score) times(uniform, "score.scale");
  }
  if (product.constant != 1) times(uniform, real_text(product.constant));
  for (const auto& [id, divides] : product.factors)
    times(uniform, divides ? base::join("fv_divide(real(1), v", id, ")") : base::join("v", id));
  return {product.rest.size() > 1 ? base::join("(", rest, ")") : rest, uniform};
}

std::string Writer::product_text(const Product& product) const {
  const auto [rest, factor] = rest_and_factor(product);
  if (rest.empty()) return factor;
  return factor.empty() ? rest : base::join("(", rest, " * (", factor, "))");
}

bool Writer::is_wide(std::size_t i) const { return program_.code[i].type == Type::integer && !scoring::fits_32_bits(bounds_[i]); }

const char* Writer::type_text(std::size_t i) const {
  switch (program_.code[i].type) {
    case Type::boolean:
      return "bool";
    case Type::integer:
      return is_wide(i) ? "i64" : "int";
    case Type::real:
      return "real";
  }
  return "";
}

std::optional<std::size_t> Writer::number_of(double x) const {
  constexpr double shown[] = {0, 0.5, 1, 2};  // arithmetic with these is short
  if (!problem_.numbers || !regroups_ || std::find(std::begin(shown), std::end(shown), std::abs(x)) != std::end(shown)) return {};
  const auto number = static_cast<float>(x);
  if (!std::isnormal(number)) return {};
  std::vector<float>& numbers = *problem_.numbers;
  const auto found = std::find(numbers.begin(), numbers.end(), number);
  const auto place = static_cast<std::size_t>(found - numbers.begin());
  if (found != numbers.end()) return place;
  if (numbers.size() == static_cast<std::size_t>(device::kMaxNumbers)) return {};
  numbers.push_back(number);
  return place;
}

bool Writer::shows(ValueId constant) const {
  return decides_[constant] || std::any_of(program_.code.begin(), program_.code.end(),
                                           [&](const Instr& instr) { return instr.op == Op::pow && instr.arg[1] == constant; });
}

std::string Writer::real_text(double x) const {
  if (std::isnan(x)) return "real(__int_as_float(0x7fc00000))";
  if (std::isinf(x)) return x > 0 ? "real(infinity())" : "real(-infinity())";
  if (const auto place = number_of(x)) return base::join("args.number[", *place, "]");
  return literal(x);
}

std::string Writer::read_text(const Instr& instr) const {
  const auto param = static_cast<std::size_t>(instr.param);
  for (std::size_t t = 0; t < given_.tables.size(); ++t)
    if (&program_.code[at(given_.tables[t].read)] == &instr) {
      const int bytes = 4 * given_.tables[t].copies;
      const auto element = element_by_lines(instr, true);
      if (!element) return base::join("load_table(at.table[", t, "], ", bytes, " * (", element_text(instr, true), "))");
      const auto load = [&](const std::string& row, const std::string& column) {
        return base::join("load_table(fv_kept(at.table[", t, "] + ", bytes, " * (", row, ")), ", column, ")");
      };
      std::string text = load(element->row, base::join("fv_kept(", bytes, " * (", element->column, "))"));
      if (const auto& steps = element->steps) {
        std::string blocks;
        for (const std::int64_t block : steps->blocks) blocks += base::join(", ", block);
        text =
            base::join("(fv_steps_apart(at.key_block", blocks, ") ? ",
                       load(base::join(element->row, " + ", steps->origin), base::join(bytes, " * (", steps->step, ")")), " : ", text, ")");
      }
      return text;
    }
  const char* load = instr.type == Type::real ? "fv_load" : "fv_load_integer";
  const std::string text =
      base::join(load, "<", device_type(problem_.params[param].tensor.dtype), ">(args.param[", param, "].data, ", offset_text(instr), ")");
  return instr.type == Type::boolean ? base::join(text, " != 0") : text;
}

std::string Writer::offset_text(const Instr& instr) const {
  const auto param = static_cast<std::size_t>(instr.param);
  const problem::TensorSpec& tensor = problem_.params[param].tensor;
  std::int64_t reach = 0;
  for (std::size_t d = 0; d < instr.index.size(); ++d) reach += std::abs(tensor.strides[d]) * (tensor.sizes[d] - 1);
  const char* width = reach < std::numeric_limits<std::int32_t>::max() ? "int" : "i64";
  std::string offset;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    if (tensor.strides[d] == 0) continue;
    if (!offset.empty()) offset += " + ";
    offset += index_text(instr.index[d], param, d);
    if (tensor.strides[d] != 1) offset += base::join(" * ", width, "(args.param[", param, "].stride[", d, "])");
  }
  if (offset.empty()) offset.push_back('0');
  return offset;
}

std::optional<PairTile> Writer::tile_of(ValueId id, bool transposed, bool stairs) const {
  const Instr& instr = program_.code[at(id)];
  if (instr.op != Op::read || instr.type == Type::boolean) return {};
  const problem::TensorSpec& tensor = problem_.params[static_cast<std::size_t>(instr.param)].tensor;
  const auto bytes = static_cast<int>(size_of(tensor.dtype));
  if (bytes > 4 || (bytes == 1 && (transposed || tensor.dtype == DType::i8)) || !tensor.aligned)
    return {};  // bytes: widened without a sign only
  PairTile tile{id, static_cast<std::size_t>(instr.param), bytes, -1, -1, 0, 0, {}};
  const std::int64_t piece = 16 / tile.element_bytes;  // where TMA boxes may begin
  const auto aligned = [&](std::size_t d) {
    constexpr std::int64_t most = std::int64_t{1} << 38;  // what a tensor map can say
    return tensor.strides[d] > 0 && tensor.strides[d] % piece == 0 && tensor.strides[d] < most;
  };
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    const ValueId index = instr.index[d];
    if (is_uniform(index)) {
      if (tensor.strides[d] == 0 || tensor.sizes[d] == 1) continue;
      if (!aligned(d)) return {};
      tile.others.push_back(static_cast<int>(d));
      continue;
    }
    const auto sum = sum_of(index);
    const Interval& bounds = bounds_[at(index)];
    const bool inside = bounds.low >= 0 && bounds.high <= static_cast<double>(tensor.sizes[d] - 1);
    if (!inside || !sum) return {};
    const std::int64_t count = static_cast<std::int64_t>(bounds.high) + 1;
    constexpr int chunk_bytes = 128;
    if (tile.column < 0 && tensor.strides[d] == 1 && sum->kv == 0 && forms_[at(index)].line * tile.element_bytes >= chunk_bytes &&
        !(program_.depends_of(index) & scoring::depends_q)) {
      tile.column = static_cast<int>(d), tile.columns = count, tile.wraps = true;
      continue;
    }
    if (stairs && tile.column < 0 && tensor.strides[d] == 1 && tile.element_bytes == 4 && forms_[at(index)].stairs &&
        !(program_.depends_of(index) & scoring::depends_q)) {
      tile.column = static_cast<int>(d), tile.columns = count, tile.stairs = true;
      continue;
    }
    for (const auto& [term, factor] : sum->terms)
      if (!is_uniform(term)) return {};
    const bool begins_aligned = sum->terms.empty() && (sum->constant + problem_.attention.kv_offset) % piece == 0;
    if (sum->kv == 1 && sum->q == 0 && tile.column < 0 && tensor.strides[d] == 1 && begins_aligned) {
      tile.column = static_cast<int>(d), tile.columns = count;
    } else if (sum->q == 1 && sum->kv == 0 && tile.row < 0 && aligned(d)) {
      tile.row = static_cast<int>(d), tile.rows = count;
    } else {
      return {};
    }
  }
  if (tile.column < 0 || tile.row < 0 || tile.others.size() > 2) return {};
  return tile;
}

std::pair<std::string, std::string> Writer::bytes_from_origin(const Instr& instr) const {
  const auto param = static_cast<std::size_t>(instr.param);
  const problem::TensorSpec& tensor = problem_.params[param].tensor;
  const std::size_t size = size_of(tensor.dtype);
  const std::string scale = size == 1 ? "" : base::join(" * ", size);
  std::string origin, step;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    const std::string index = index_text(instr.index[d], param, d);
    const auto sum = sum_of_places(instr.index[d]);
    if (index.compare(0, 4, "int(") != 0) return {base::join("i64(", offset_text(instr), ")", scale), "0"};
    const std::string stride = base::join("args.param[", param, "].stride[", d, "]");
    const auto add = [&](std::string& text, const std::string& value, bool narrow) {
      if (!text.empty()) text += " + ";
      if (tensor.strides[d] == 1) {
        text += narrow ? base::join("i64((", value, ")", scale, ")") : base::join("i64(", value, ")", scale);
      } else {
        text += narrow ? base::join("i64((", value, ") * (int(", stride, ")", scale, "))")
                       : base::join("i64(", value, ") * (", stride, scale, ")");
      }
    };
    constexpr std::int64_t most = 1 << 20;  // a step within a tile times this and eight bytes fits into 32 bits
    add(origin, sum ? sum->origin : base::join("v", instr.index[d]), false);
    if (sum) add(step, sum->step, std::abs(tensor.strides[d]) <= most);
  }
  return {origin, step.empty() ? "0" : step};
}

std::string Writer::value_text(std::size_t i) const {
  const Instr& instr = program_.code[i];
  switch (instr.op) {
    case Op::real_const:
      return std::isfinite(instr.real) && shows(static_cast<ValueId>(i)) ? literal(instr.real) : real_text(instr.real);
    case Op::integer_const:
      if (instr.integer == std::numeric_limits<std::int64_t>::min())
        return "(-9223372036854775807ll - 1)";  // its digits are too large for C
      return base::join(is_wide(i) ? "i64(" : "int(", instr.integer, is_wide(i) ? "ll)" : ")");
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
      return read_text(instr);
    case Op::to_real:
      if (!is_small_integer(instr.arg[0])) return base::join("real(v", instr.arg[0], ")");
      if (const auto sum = sum_of_places(instr.arg[0]))
        return base::join("(fv_small_integer(", sum->origin, ") + fv_small_integer(", sum->step, "))");
      return base::join("fv_small_integer(v", instr.arg[0], ")");
    case Op::to_integer:
      if (is_wide(i)) return base::join("i64(v", instr.arg[0], ")");
      return operation_text(i);
    case Op::add:
    case Op::sub:
      if (const auto sum = sum_of_lines(static_cast<ValueId>(i))) return text_of(*sum);
      if (const auto sum = sum_of_places(static_cast<ValueId>(i))) return base::join("(", sum->origin, " + (", sum->step, "))");
      return operation_text(i);
    case Op::mul:
    case Op::div:
    case Op::neg:
      if (const Product product = product_of(static_cast<ValueId>(i)); product.rest != std::vector{static_cast<ValueId>(i)})
        return product_text(product);
      return operation_text(i);
    case Op::exp:
    case Op::sigmoid:
    case Op::tanh:
      if (regroups_ && !decides_[static_cast<ValueId>(i)] && !is_uniform(static_cast<ValueId>(i))) {
        const auto [rest, factor] = rest_and_factor(product_of(instr.arg[0]));
        if (!factor.empty()) return base::join("fv_", scoring::row(instr.op).text, "(", rest, ", ", factor, ")");
      }
      return operation_text(i);
    default:
      return operation_text(i);
  }
}

std::optional<Writer::SumOfPlaces> Writer::sum_of_places(ValueId id) const {
  constexpr double limit = 1 << 30;
  const Interval& bounds = bounds_[at(id)];
  const auto sum = sum_of(id);
  if (!sum || !(bounds.low >= -limit && bounds.high <= limit)) return {};
  if (sum->q == 0 && sum->kv == 0) return {};
  SumOfPlaces places;
  const auto append = [](std::string& text, std::int64_t factor, const std::string& value) {
    if (factor == 0) return;
    if (!text.empty() || factor < 0) text += factor < 0 ? " - " : " + ";
    text += std::abs(factor) == 1 ? value : base::join(std::abs(factor), " * ", value);
  };
  append(places.origin, sum->kv, "(at.kv - at.kv_step)");
  append(places.origin, sum->q, "(at.q - at.q_step)");
  for (const auto& [atom, factor] : sum->terms) append(places.origin, factor, base::join("v", atom));
  if (sum->constant != 0) append(places.origin, sum->constant < 0 ? -1 : 1, std::to_string(std::abs(sum->constant)));
  append(places.step, sum->kv, "at.kv_step");
  append(places.step, sum->q, "at.q_step");
  return places;
}

std::optional<Writer::SumOfLines> Writer::sum_of_lines(ValueId id) const {
  constexpr double limit = 1 << 30;
  const auto sum = sum_of(id);
  if (!sum) return {};
  const scoring::Box box = whole_problem(problem_);
  const auto size = [](const Interval& value) { return std::max(std::abs(value.low), std::abs(value.high)); };
  double reach = std::abs(static_cast<double>(sum->constant));  // of either part
  const auto append = [&](std::string& text, std::int64_t factor, const std::string& value, double most) {
    if (factor == 0) return;
    reach += std::abs(static_cast<double>(factor)) * most;
    text += base::join(text.empty() ? "" : " + ", value, factor == 1 ? "" : base::join(" * ", factor));
  };
  std::string row, column;
  bool of_places = true;
  append(row, sum->q, "at.q", size(box.q_idx));
  append(column, sum->kv, "at.kv", size(box.kv_idx));
  for (const auto& [atom, factor] : sum->terms) {
    const Varies over = scoring::varies(program_, atom);
    if (over == Varies::diagonal || over == Varies::pair) return {};
    of_places = of_places && over == Varies::uniform;
    append(over == Varies::column ? column : row, factor, base::join("v", atom), size(bounds_[at(atom)]));
  }
  if (of_places || row.empty() || column.empty() || !(reach <= limit)) return {};
  if (sum->constant != 0) row += base::join(" + ", sum->constant);
  return SumOfLines{row, column, column_steps(id)};
}

bool Writer::of_kv(ValueId id, const std::string& kv, std::string& text, std::int64_t& divided, std::vector<std::int64_t>& blocks) const {
  const Instr& instr = program_.code[at(id)];
  if (instr.op == Op::kv_idx) {
    text = kv, divided = 1;
    return true;
  }
  if ((instr.op != Op::floor_div && instr.op != Op::mod) || program_.code[at(instr.arg[1])].op != Op::integer_const) return false;
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t by = program_.code[at(instr.arg[1])].integer;
  std::string value;
  if (!of_kv(instr.arg[0], kv, value, divided, blocks) || by <= 0 || by > most / divided || by * divided % 8 != 0) return false;
  blocks.push_back(by * divided);
  const bool divides = instr.op == Op::floor_div;
  text = base::join("int(u32(", value, divides ? ") / " : ") % ", by, "u)");
  if (divides) divided *= by;
  return true;
}

std::optional<Writer::ColumnSteps> Writer::column_steps(ValueId id) const {
  const auto sum = sum_of(id);
  if (problem_.attention.kv_offset != 0 || !sum) return {};
  ColumnSteps steps;
  const auto append = [](std::string& text, const std::string& value, std::int64_t factor) {
    text += base::join(text.empty() ? "" : " + ", value, factor == 1 ? "" : base::join(" * ", factor));
  };
  if (sum->kv != 0) append(steps.origin, "(at.kv - at.kv_step)", sum->kv), append(steps.step, "at.kv_step", sum->kv);
  for (const auto& [atom, factor] : sum->terms) {
    if (scoring::varies(program_, atom) != Varies::column) continue;
    std::int64_t divided = 1;
    std::string origin, step;
    std::vector<std::int64_t> once;
    if (!of_kv(atom, "(at.kv - at.kv_step)", origin, divided, once) || !of_kv(atom, "at.kv_step", step, divided, steps.blocks)) return {};
    append(steps.origin, origin, factor), append(steps.step, step, factor);
  }
  if (steps.origin.empty()) return {};
  return steps;
}

std::string Writer::text_of(const SumOfLines& sum) { return base::join("(fv_kept(", sum.row, ") + fv_kept(", sum.column, "))"); }

std::optional<Writer::SumOfLines> Writer::element_by_lines(const Instr& instr, bool padded) const {
  const auto param = static_cast<std::size_t>(instr.param);
  SumOfLines element;
  element.steps = ColumnSteps{};
  std::int64_t step = 1;
  for (std::size_t d = instr.index.size(); d-- > 0;) {
    const ValueId id = instr.index[d];
    const Varies over = scoring::varies(program_, id);
    if (over == Varies::uniform) continue;
    const std::string index = index_text(id, param, d);
    const bool inside = index.compare(0, 4, "int(") == 0;
    const auto add = [&](std::string& text, const std::string& value) {
      text += base::join(text.empty() ? "(" : " + (", value, ")", step == 1 ? "" : base::join(" * ", step));
    };
    if (over == Varies::row) {
      add(element.row, index);
    } else {
      std::optional<ColumnSteps> steps;
      if (over == Varies::column) {
        add(element.column, index);
        if (inside) steps = column_steps(id);
      } else {
        const auto lines = sum_of_lines(id);
        if (!lines || !inside) return {};
        add(element.row, lines->row);
        add(element.column, lines->column);
        steps = lines->steps;
      }
      if (steps && element.steps) {
        add(element.steps->origin, steps->origin);
        add(element.steps->step, steps->step);
        element.steps->blocks.insert(element.steps->blocks.end(), steps->blocks.begin(), steps->blocks.end());
      } else {
        element.steps.reset();
      }
    }
    step *= entries_of(instr, d, padded);
  }
  if (element.row.empty() || element.column.empty()) return {};
  return element;
}

std::optional<Writer::Sum> Writer::sum_of(ValueId id) const {
  constexpr std::int64_t most_factor = 1 << 20, most_constant = 1 << 30;
  const scoring::Linear& form = linear_[at(id)];
  if (program_[id].type != Type::integer || is_wide(at(id)) || std::abs(form.constant) >= most_constant) return {};
  Sum sum{.constant = form.constant};
  for (const auto& [atom, factor] : form.terms) {
    if (std::abs(factor) > most_factor || is_wide(at(atom))) return {};
    const Op op = program_[atom].op;
    if (op == Op::q_idx)
      sum.q = factor;
    else if (op == Op::kv_idx)
      sum.kv = factor;
    else
      sum.terms.emplace_back(atom, factor);
  }
  return sum;
}

bool Writer::is_small_integer(ValueId id) const {
  const Interval& bounds = bounds_[at(id)];
  constexpr double limit = 1 << 22;
  return program_.code[at(id)].type == Type::integer && !is_uniform(id) && bounds.low >= -limit && bounds.high <= limit;
}

std::string Writer::operation_text(std::size_t i) const {
  const Instr& instr = program_.code[i];
  if ((instr.op == Op::floor_div || instr.op == Op::mod) && instr.type == Type::integer) {
    const Interval &a = bounds_[at(instr.arg[0])], &b = bounds_[at(instr.arg[1])];
    if (a.low >= 0 && b.low > 0 && scoring::fits_32_bits(a) &&
        scoring::fits_32_bits(b))  // one instruction for a power of two, three for others
      return base::join("int(u32(v", instr.arg[0], instr.op == Op::mod ? ") % u32(v" : ") / u32(v", instr.arg[1], "))");
  }
  const scoring::OpRow& row = scoring::row(instr.op);
  const int first = row.arity == 3 ? 1 : 0;  // a select's condition has no say
  const Type operands = program_.code[at(instr.arg[static_cast<std::size_t>(first)])].type;
  const std::string_view form = operands == Type::real && !row.cuda_real.empty() ? row.cuda_real : row.cuda_integer;
  if (form.empty()) base::fail(ErrorCode::compile_failed, "operation ", row.text, " has no CUDA form for ", to_string(operands));
  bool wide = is_wide(i);
  for (int a = first; a < row.arity; ++a) wide = wide || is_wide(at(instr.arg[static_cast<std::size_t>(a)]));
  constexpr Op approximated[] = {Op::div,  Op::exp,     Op::exp2, Op::log, Op::log2, Op::sqrt,
                                 Op::tanh, Op::sigmoid, Op::sin,  Op::cos, Op::tan,  Op::pow};
  const bool exact =
      decides_[static_cast<ValueId>(i)] && std::find(std::begin(approximated), std::end(approximated), instr.op) != std::end(approximated);
  std::string text;
  for (std::size_t c = 0; c < form.size(); ++c) {
    if (form[c] != '$') {
      if (exact && form[c] == '(') text += "<false>";
      text.push_back(form[c]);
      continue;
    }
    const int which = form[++c] - '0';
    const ValueId arg = instr.arg[static_cast<std::size_t>(which)];
    const bool widen = wide && which >= first && program_.code[at(arg)].type == Type::integer && !is_wide(at(arg));
    text += widen ? base::join("i64(v", arg, ")") : base::join("v", arg);
  }
  return text;
}

}  // namespace foveal::cuda
