#include "cuda/score_emit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/check.h"
#include "score/interval.h"
#include "score/op_table.h"

namespace foveal::cuda {
namespace {

using problem::Problem;
using scoring::Instr;
using scoring::Interval;
using scoring::Op;
using scoring::Program;
using scoring::ValueId;

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

/// What the type of a parameter's tensor says about its values.
class TypeRanges : public scoring::ReadRanges {
 public:
  explicit TypeRanges(const Problem& problem) : problem_(problem) {}
  Interval range(std::int32_t param, std::span<const Interval>) const override {
    switch (problem_.params[static_cast<std::size_t>(param)].tensor.dtype) {
      case DType::i32:
        return {-2147483648.0, 2147483647.0};
      case DType::i16:
        return {-32768, 32767};
      case DType::i8:
        return {-128, 127};
      case DType::u8:
        return {0, 255};
      case DType::boolean:
        return {0, 1};
      case DType::i64:
        return {-0x1p62, 0x1p62};
      default:
        return {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), true};
    }
  }

 private:
  const Problem& problem_;
};

scoring::Box whole_problem(const Problem& p) {
  const auto last = [](std::int64_t count) { return static_cast<double>(std::max<std::int64_t>(count, 1) - 1); };
  const auto offset_q = static_cast<double>(p.attention.q_offset), offset_kv = static_cast<double>(p.attention.kv_offset);
  const auto length = [&](std::int64_t n) { return Interval{p.varlen ? 0.0 : static_cast<double>(n), static_cast<double>(n)}; };
  return {.batch = {0, last(p.batch)},
          .head = {0, last(p.heads_q)},
          .q_idx = {offset_q, offset_q + last(p.seqlen_q)},
          .kv_idx = {offset_kv, offset_kv + last(p.seqlen_kv)},
          .seqlen_q = length(p.seqlen_q),
          .seqlen_kv = length(p.seqlen_kv)};
}

bool fits_int(const Interval& i) { return i.low >= -2147483648.0 && i.high <= 2147483647.0; }

/// Writes the instructions that some outputs need, as declarations `const int v3 = ...;`.
class Writer {
 public:
  Writer(const Problem& problem, const Program& program, const LineValues& lines = {})
      : problem_(problem),
        program_(program),
        lines_(lines),
        bounds_(scoring::evaluate(program, whole_problem(problem), TypeRanges(problem))),
        decides_(find_deciders(program)) {}

  /// Declarations of everything that `outputs` need.
  std::string body(const std::vector<ValueId>& outputs) const {
    std::vector<bool> needed(program_.code.size(), false);
    for (const ValueId output : outputs) needed[at(output)] = true;
    for (std::size_t i = program_.code.size(); i-- > 0;) {
      if (!needed[i] || !line_text(i).empty()) continue;
      const Instr& instr = program_.code[i];
      for (const ValueId arg : instr.arg)
        if (arg >= 0) needed[at(arg)] = true;
      for (const ValueId index : instr.index) needed[at(index)] = true;
    }
    std::string text;
    for (std::size_t i = 0; i < program_.code.size(); ++i) {
      if (!needed[i]) continue;
      const std::string line = line_text(i);
      text += base::join("  const ", type_text(i), " v", i, " = ", line.empty() ? value_text(i) : line, ";\n");
    }
    return text;
  }

  /// Statements that return a value.
  std::string result(ValueId value) const { return body({value}) + base::join("  return v", value, ";\n"); }

  std::string index_text(ValueId index, std::size_t param, std::size_t dimension) const {
    const auto& size = problem_.params[param].param.shape()[dimension];
    const Interval& bounds = bounds_[at(index)];
    if (bounds.low >= 0 && bounds.high <= static_cast<double>(size - 1)) return base::join("int(v", index, ")");
    return base::join("fv_clamp(v", index, ", args.param[", param, "].size[", dimension, "])");
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id); }

  /// Real values that an index, a comparison or a rounding is made from: they are computed exactly, because a small error there is a wrong
  /// answer.
  static std::vector<bool> find_deciders(const Program& program) {
    std::vector<bool> decides(program.code.size(), false);
    for (std::size_t i = program.code.size(); i-- > 0;) {
      const Instr& instr = program.code[i];
      const bool rounds = instr.op == Op::floor || instr.op == Op::floor_div || instr.op == Op::mod;
      const bool chooses = instr.type != Type::real || rounds || decides[i];
      // Comparisons with the score itself are as inexact as the score.
      if (!chooses || (program.depends[i] & scoring::depends_score)) continue;
      for (const ValueId arg : instr.arg)
        if (arg >= 0) decides[at(arg)] = true;
    }
    return decides;
  }

  /// Where a value is found that was evaluated for a whole line; otherwise empty.
  std::string line_text(std::size_t i) const {
    const auto find = [&](const char* name, const std::vector<ValueId>& values) {
      const auto found = std::find(values.begin(), values.end(), static_cast<ValueId>(i));
      return found == values.end() ? std::string() : base::join("at.", name, "[", found - values.begin(), "]");
    };
    const std::string walk = find("walk", lines_.walk);
    return walk.empty() ? find("diagonal", lines_.diagonal) : walk;
  }

  bool is_wide(std::size_t i) const { return program_.code[i].type == Type::integer && !fits_int(bounds_[i]); }

  const char* type_text(std::size_t i) const {
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

  static std::string real_text(double x) {
    if (std::isnan(x)) return "real(__int_as_float(0x7fc00000))";
    if (std::isinf(x)) return x > 0 ? "real(infinity())" : "real(-infinity())";
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.17g", x);
    return base::join("real(", digits, ")");
  }

  std::string read_text(const Instr& instr) const {
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
    const char* load = instr.type == Type::real ? "fv_load" : "fv_load_integer";
    const std::string text = base::join(load, "<", device_type(tensor.dtype), ">(args.param[", param, "].data, ", offset, ")");
    return instr.type == Type::boolean ? base::join(text, " != 0") : text;
  }

  std::string value_text(std::size_t i) const {
    const Instr& instr = program_.code[i];
    switch (instr.op) {
      case Op::real_const:
        return real_text(instr.real);
      case Op::integer_const:
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
      default:
        return operation_text(i);
    }
  }

  std::string operation_text(std::size_t i) const {
    const Instr& instr = program_.code[i];
    const scoring::OpRow& row = scoring::row(instr.op);
    const int first = row.arity == 3 ? 1 : 0;  // a select's condition has no say
    const Type operands = program_.code[at(instr.arg[static_cast<std::size_t>(first)])].type;
    const std::string_view form = operands == Type::real && !row.cuda_real.empty() ? row.cuda_real : row.cuda_integer;
    if (form.empty()) base::fail(ErrorCode::compile_failed, "operation ", row.text, " has no CUDA form for ", to_string(operands));
    bool wide = is_wide(i);
    for (int a = first; a < row.arity; ++a) wide = wide || is_wide(at(instr.arg[static_cast<std::size_t>(a)]));
    constexpr Op approximated[] = {Op::div, Op::exp, Op::exp2, Op::log, Op::log2, Op::tanh, Op::sigmoid};
    const bool exact = decides_[i] && std::find(std::begin(approximated), std::end(approximated), instr.op) != std::end(approximated);
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

  const Problem& problem_;
  const Program& program_;
  const LineValues lines_;
  std::vector<Interval> bounds_;
  std::vector<bool> decides_;
};

bool depends_on_score(const Program& program, ValueId value) {
  return (program.depends[static_cast<std::size_t>(value)] & scoring::depends_score) != 0;
}

constexpr const char* pair_signature = "(real score, const At& at, const ScoreArgs& args)";

/// A template whose value or effect for i = 0, 1, ... is given.
std::string numbered(const std::string& head, const std::vector<std::string>& bodies, const std::string& otherwise) {
  std::string text = head + " {\n";
  for (std::size_t i = 0; i < bodies.size(); ++i) text += base::join("  if constexpr (i == ", i, ") {\n", bodies[i], "  }\n");
  return text + otherwise + "}\n";
}

template <class Fn>
std::string list(const std::string& declaration, std::size_t count, Fn&& element) {
  std::string text = declaration + "[] = {";
  for (std::size_t i = 0; i < count; ++i) {
    text += element(i);
    text += ", ";
  }
  return text + "0};\n";
}

const char* kind_text(scoring::Reduction reduction) {
  switch (reduction) {
    case scoring::Reduction::uniform:
      return "kUniform";
    case scoring::Reduction::row:
      return "kRow";
    case scoring::Reduction::column:
      return "kColumn";
    case scoring::Reduction::diagonal:
      return "kDiagonal";
    case scoring::Reduction::element:
      return "kElement";
    case scoring::Reduction::scatter:
      return "kScatter";
  }
  return "";
}

std::string emit_reads(const Problem& p, const LineValues& lines) {
  const auto& reads = p.score->reads;
  const Program& program = p.score->backward;
  const std::size_t count = reads.size();
  const auto param = [&](std::size_t r) { return static_cast<std::size_t>(reads[r].param); };
  const auto storage = [&](std::size_t r) { return gradient_storage(p, param(r)); };
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  std::string text = base::join("constexpr int kReads = ", count, ";\n");
  text += list("constexpr int kReadKind", count, [&](std::size_t r) {
    const bool summed = reads[r].reduction == scoring::Reduction::element && storage(r) == GradientStorage::exact_sums;
    return summed ? "kScatter" : kind_text(reads[r].reduction);
  });
  text += list("constexpr int kReadParam", count, [&](std::size_t r) { return std::to_string(reads[r].param); });
  text += list("constexpr int kReadRank", count, [&](std::size_t r) { return std::to_string(reads[r].index.size()); });
  text += list("constexpr bool kReadStores", count, [&](std::size_t r) { return truth(storage(r) == GradientStorage::stored); });
  text += list("constexpr bool kFactorOfScore", count, [&](std::size_t r) { return truth(depends_on_score(program, reads[r].factor)); });
  text += list("constexpr bool kFactorIsOne", count, [&](std::size_t r) {
    const Instr& factor = program.code[static_cast<std::size_t>(reads[r].factor)];
    return truth(factor.op == Op::real_const && factor.real == 1);
  });
  text += "template <int r>\nstruct ReadGradientOf {\n  using type = real;\n};\n";
  for (std::size_t r = 0; r < count; ++r) {
    if (storage(r) != GradientStorage::stored) continue;
    text += base::join("template <>\nstruct ReadGradientOf<", r, "> {\n  using type = ", device_type(p.params[param(r)].gradient.dtype),
                       ";\n};\n");
  }
  text += "template <int r>\nusing ReadGradient = typename ReadGradientOf<r>::type;\n";

  std::vector<std::string> factors, indices;
  if (count > 0) {
    const Writer writer(p, program), on_lines(p, program, lines);
    for (const scoring::TrainableRead& read : reads) {
      factors.push_back(on_lines.result(read.factor));
      std::string body = writer.body(read.index);
      for (std::size_t d = 0; d < read.index.size(); ++d)
        body += base::join("  index[", d, "] = ", writer.index_text(read.index[d], static_cast<std::size_t>(read.param), d), ";\n");
      indices.push_back(body);
    }
  }
  text += numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE real read_factor", pair_signature), factors, "  return 0;\n");
  text += numbered(
      "template <int i>\nFOVEAL_DEVICE void read_index(real score, const Position& at, const ScoreArgs& args, int (&index)[kMaxParamRank])",
      indices, "");
  return text;
}

std::string emit_lines(const Problem& p, const LineValues& lines) {
  std::string text =
      base::join("constexpr int kWalkValues = ", lines.walk.size(), ";\nconstexpr int kDiagonalValues = ", lines.diagonal.size(), ";\n");
  const auto functions = [&](const char* name, const std::vector<ValueId>& values) {
    std::vector<std::string> bodies;
    const Program& program = p.pass == Pass::forward ? p.score->forward : p.score->backward;
    for (const ValueId value : values) bodies.push_back(Writer(p, program).result(value));
    text += numbered(base::join("template <int i>\nFOVEAL_DEVICE real ", name, "(const Position& at, const ScoreArgs& args)"), bodies,
                     "  return 0;\n");
  };
  functions("walk_value", lines.walk);
  functions("diagonal_value", lines.diagonal);
  return text;
}

}  // namespace

GradientStorage gradient_storage(const Problem& p, std::size_t param) {
  if (!p.params[param].gradient.present) return GradientStorage::none;
  if (static_cast<int>(param) == p.sink) return GradientStorage::exact_sums;
  if (p.score->params[param].gradient_is_zero) return GradientStorage::zero;
  int found = 0;
  bool elements = true, owned = true;
  for (const scoring::TrainableRead& read : p.score->reads) {
    if (read.param != static_cast<std::int32_t>(param)) continue;
    ++found;
    elements = elements && read.reduction == scoring::Reduction::element;
    owned = owned && (read.reads_head || p.heads_q == 1) && (read.reads_batch || p.batch == 1);
  }
  if (!elements) return GradientStorage::exact_sums;
  return owned && found == 1 ? GradientStorage::stored : GradientStorage::added;
}

std::string emit_score(const Problem& p, const LineValues& lines) {
  const scoring::ScoreProgram& score = *p.score;
  const bool backward = p.has_score_mod() && p.pass == Pass::backward;
  std::string text = base::join(
      "constexpr bool kHasScore = ", p.has_score_mod() ? "true" : "false", ";\n",
      "constexpr bool kHasMask = ", p.has_mask() ? "true" : "false", ";\n", "constexpr bool kHasSink = ", p.sink >= 0 ? "true" : "false",
      ";\n", "constexpr bool kSlopeOfScore = ", backward && depends_on_score(score.backward, score.dscore) ? "true" : "false", ";\n");
  const bool sink_gradient = p.sink >= 0 && p.params[static_cast<std::size_t>(p.sink)].gradient.present;
  text += base::join("constexpr int kSinkParam = ", sink_gradient ? p.sink : -1, ";\n");

  std::string modified = "  return score;\n", slope = "  return 1;\n", keep = "  return true;\n", sink = "  return 0;\n";
  if (p.has_score_mod() && p.pass == Pass::forward) modified = Writer(p, score.forward, lines).result(score.forward.outputs[0]);
  if (backward) {
    const Writer writer(p, score.backward, lines);
    modified = writer.result(score.modified);
    slope = writer.result(score.dscore);
  }
  if (p.has_mask()) keep = Writer(p, score.mask).result(score.mask.outputs[0]);
  if (p.sink >= 0) {
    const problem::TensorSpec& tensor = p.params[static_cast<std::size_t>(p.sink)].tensor;
    sink = base::join("  return fv_load<", device_type(tensor.dtype), ">(args.param[", p.sink, "].data, head * args.param[", p.sink,
                      "].stride[0]);\n");
  }
  text += base::join("template <class At>\nFOVEAL_DEVICE real score_forward", pair_signature, " {\n", modified, "}\n");
  text += base::join("template <class At>\nFOVEAL_DEVICE real score_backward", pair_signature, " {\n", slope, "}\n");
  text += "FOVEAL_DEVICE bool mask_keep(const Position& at, const ScoreArgs& args) {\n" + keep + "}\n";
  text += "FOVEAL_DEVICE real sink_logit(int head, const ScoreArgs& args) {\n" + sink + "}\n";
  return text + emit_lines(p, lines) + emit_reads(p, lines);
}

}  // namespace foveal::cuda
