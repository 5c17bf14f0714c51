// The tape against scoring::evaluate in double, pair by pair: every operation, every row of the catalogue, every reduction of a gradient,
// on every target that this machine runs, for lanes of one head, of stacked heads and in disorder.
#include "cpu/tape.h"

#include <gtest/gtest.h>

#include "cpu/param_grad_plan.h"
#if defined(__linux__)
#include "cpu/sparse_memory.h"
#endif

#include <cmath>
#include <numbers>
#include <random>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "base/strided.h"
#include "catalogue/catalogue.h"
#include "problem/case_data.h"
#include "score/evaluate.h"
#include "score/op_table.h"
#include "score/random_expr.h"

namespace foveal::cpu {
namespace {

std::vector<std::string> tape_targets() {
  std::vector<std::string> targets{"scalar"};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) targets.push_back("avx2");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    targets.push_back("avx512");
#endif
  return targets;
}

template <class T>
struct Aligned {
  explicit Aligned(std::size_t n)
      : bytes(n * sizeof(T) + 64), data(reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(bytes.data()) + 63) / 64 * 64)), size(n) {}
  std::vector<char> bytes;
  T* data;
  std::size_t size;
  T& operator[](std::size_t i) { return data[i]; }
};

/// A tile's lanes: how a kernel might stack (head, query) pairs.
struct Lanes {
  const char* name;
  std::vector<std::int32_t> head, q_idx;
  int valid;
};

Lanes pad(Lanes lanes) {
  lanes.valid = static_cast<int>(lanes.head.size());
  while (lanes.head.size() % TileFrame::lane_multiple) {
    lanes.head.push_back(lanes.head.back());
    lanes.q_idx.push_back(lanes.q_idx.back());
  }
  return lanes;
}

std::vector<Lanes> lane_patterns(std::int32_t heads, std::int32_t seqlen_q) {
  Lanes one{"one head", {}, {}, 0}, stacked{"stacked heads", {}, {}, 0}, mixed{"mixed", {}, {}, 0};
  for (std::int32_t i = 0; i < std::min(35, seqlen_q - 1); ++i) {
    one.head.push_back(heads - 1);
    one.q_idx.push_back(1 + i);
  }
  if (one.head.empty()) one = {"one head", {0}, {0}, 0};
  if (seqlen_q >= 18)
    for (std::int32_t h = 0; h < std::min(heads, 3); ++h)
      for (std::int32_t i = 0; i < 16; ++i) {
        stacked.head.push_back(h);
        stacked.q_idx.push_back(2 + i);
      }
  for (std::int32_t h = 0; h < heads; ++h)
    for (std::int32_t i = 0; i < std::min(5, seqlen_q); ++i) {
      mixed.head.push_back(h);
      mixed.q_idx.push_back(seqlen_q - 1 - (i * 7) % seqlen_q);
    }
  std::vector<Lanes> all{pad(one), pad(mixed)};
  if (!stacked.head.empty()) all.push_back(pad(stacked));
  return all;
}

/// Parameters of a case, and what the programs mean at one pair.
class Meaning : public scoring::ParamReader {
 public:
  Meaning(const problem::Problem& problem, const problem::CaseData& data) : problem_(problem), data_(data), values_(4096) {}

  double read(std::int32_t param, const std::int64_t* index) const override {
    return values_of_param(param)[static_cast<std::size_t>(element(param, index))];
  }
  std::int64_t element(std::int32_t param, const std::int64_t* index) const {
    const auto& shape = problem_.params[static_cast<std::size_t>(param)].param.shape();
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) offset = offset * shape[d] + std::clamp<std::int64_t>(index[d], 0, shape[d] - 1);
    return offset;
  }
  double run(const scoring::Program& program, const scoring::Point& point) {
    values_.resize(program.code.size());
    return scoring::evaluate(program, point, *this, values_.data());
  }
  double value(scoring::ValueId id) const { return values_[static_cast<std::size_t>(id)].real; }
  std::int64_t read_element(const scoring::TrainableRead& read) const {
    std::vector<std::int64_t> index;
    for (scoring::ValueId id : read.index) index.push_back(values_[static_cast<std::size_t>(id)].integer);
    return element(read.param, index.data());
  }

 private:
  const std::vector<double>& values_of_param(std::int32_t param) const {
    auto& cached = cache_[param];
    if (cached.empty()) cached = problem::values_of(data_.param(static_cast<std::size_t>(param)));
    return cached;
  }
  const problem::Problem& problem_;
  const problem::CaseData& data_;
  std::vector<scoring::Scalar> values_;
  mutable std::map<std::int32_t, std::vector<double>> cache_;
};

template <class Real>
void check_case(const std::string& text, const std::string& target) {
  SCOPED_TRACE(text);
  SCOPED_TRACE(target + (sizeof(Real) == 8 ? " f64" : " f32"));
  constexpr double epsilon = sizeof(Real) == 8 ? 2e-14 : 3e-6;
  const problem::CaseData data(problem::parse_line(std::string("backward ") + (sizeof(Real) == 8 ? "f64 " : "f32 ") + text));
  const problem::Problem problem = problem::make_problem(data.line().attention, data.backward_inputs(), data.backward_outputs());
  const scoring::ScoreProgram& score = *problem.score;
  ASSERT_FALSE(Tape::refuses(problem).has_value());
  const Tape tape(problem, target);
  SCOPED_TRACE(tape.text());
  Meaning meaning(problem, data);
  std::vector<TensorView> params;
  for (std::size_t i = 0; i < problem.params.size(); ++i) params.push_back(data.param(i));
  Aligned<char> bound_memory(tape.data_bytes());
  const TapeData bound = tape.bind(params, bound_memory.data);

  for (const Lanes& lanes : lane_patterns(static_cast<std::int32_t>(problem.heads_q), static_cast<std::int32_t>(problem.seqlen_q))) {
    SCOPED_TRACE(lanes.name);
    TileFrame frame;
    frame.lanes = lanes.valid;
    frame.ld = static_cast<int>(lanes.head.size()) + 16;
    frame.keys = static_cast<int>(std::min<std::int64_t>(problem.seqlen_kv - 1, 45));
    frame.kv_idx = static_cast<std::int32_t>(problem.seqlen_kv) - frame.keys;
    frame.batch = static_cast<std::int32_t>(problem.batch) - 1;
    frame.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
    frame.seqlen_kv = static_cast<std::int32_t>(problem.seqlen_kv);
    frame.head = lanes.head.data();
    frame.q_idx = lanes.q_idx.data();
    const auto elements = static_cast<std::size_t>(frame.keys) * static_cast<std::size_t>(frame.ld);
    const auto at = [&](int row, int lane) {
      return static_cast<std::size_t>(row) * static_cast<std::size_t>(frame.ld) + static_cast<std::size_t>(lane);
    };
    Aligned<Real> dots(elements), scores(elements), ds(elements), max(static_cast<std::size_t>(frame.ld));
    Aligned<char> scratch(tape.scratch_bytes(frame.keys, frame.ld));
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < elements; ++i) dots[i] = static_cast<Real>(normal(random) * 4);
    const auto point = [&](int row, int lane) {
      scoring::Point p;
      p.score = static_cast<double>(dots[at(row, lane)]) * problem.scale;
      p.batch = frame.batch;
      p.head = lanes.head[static_cast<std::size_t>(lane)];
      p.q_idx = lanes.q_idx[static_cast<std::size_t>(lane)];
      p.kv_idx = frame.kv_idx + row;
      p.seqlen_q = problem.seqlen_q;
      p.seqlen_kv = problem.seqlen_kv;
      return p;
    };
    const auto keeps = [&](int row, int lane) { return score.mask.empty() || meaning.run(score.mask, point(row, lane)) != 0; };

    // Forward, whole and partial.
    for (const bool partial : {false, true}) {
      if (!tape.has_score() && !(partial && tape.has_mask())) continue;
      for (std::size_t i = 0; i < max.size; ++i) max[i] = static_cast<Real>(-1e30);
      tape.apply(frame, bound, dots.data, scores.data, partial, max.data, scratch.data);
      for (int lane = 0; lane < frame.lanes; ++lane) {
        Real largest = static_cast<Real>(-1e30);
        for (int row = 0; row < frame.keys; ++row) {
          double expected = tape.has_score() ? meaning.run(score.forward, point(row, lane)) : static_cast<double>(dots[at(row, lane)]);
          if (partial && !keeps(row, lane)) expected = -std::numeric_limits<double>::infinity();
          const double found = static_cast<double>(scores[at(row, lane)]);
          largest = std::max(largest, scores[at(row, lane)]);
          if (std::isinf(expected) || std::isnan(expected)) {
            ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
                << "row " << row << " lane " << lane << ": " << found << " not " << expected;
          } else {
            ASSERT_NEAR(found, expected, epsilon * (1 + std::abs(expected))) << "row " << row << " lane " << lane << " partial " << partial;
          }
        }
        ASSERT_EQ(max[static_cast<std::size_t>(lane)], largest);
      }
    }

    if (tape.mask_is_ranges()) {
      std::vector<std::int32_t> first(static_cast<std::size_t>(frame.ld)), last(static_cast<std::size_t>(frame.ld));
      tape.lane_ranges(frame, bound, first.data(), last.data(), scratch.data);
      for (int lane = 0; lane < frame.lanes; ++lane)
        for (int row = 0; row < frame.keys; ++row)
          ASSERT_EQ(first[static_cast<std::size_t>(lane)] <= row && row < last[static_cast<std::size_t>(lane)], keeps(row, lane))
              << row << ' ' << lane;
    }

    ASSERT_FALSE(tape.find_outside(frame, bound, dots.data).has_value());

    // Backward.
    if (!tape.has_backward()) continue;
    std::vector<std::vector<double>> expected(problem.params.size()), bound_of(problem.params.size());
    for (std::size_t p = 0; p < problem.params.size(); ++p) {
      expected[p].assign(static_cast<std::size_t>(data.param(p).numel()), 0.0);
      bound_of[p].assign(static_cast<std::size_t>(data.param(p).numel()), 0.0);
    }
    Aligned<Real> start(elements);
    for (int row = 0; row < frame.keys; ++row)
      for (int lane = 0; lane < frame.ld; ++lane)
        start[at(row, lane)] = lane < frame.lanes && keeps(row, lane) && std::isfinite(meaning.run(score.backward, point(row, lane)))
                                   ? static_cast<Real>(normal(random))
                                   : Real{0};
    for (std::size_t i = 0; i < elements; ++i) ds[i] = start[i];
    const ParamGradPlan plan(problem, 1);
    std::vector<TensorView> dparams;
    for (std::size_t p = 0; p < problem.params.size(); ++p) dparams.push_back(data.dparam(p));
    Aligned<char> sums(plan.workspace_bytes());
    const Executor serial = base::default_executor(1);
    plan.clear(sums.data, dparams, serial);
    const TapeGrads grads = plan.grads(sums.data, dparams, plan.partition(frame.batch, 0, 0));
    tape.differentiate(frame, bound, tape.backward_needs_dots() ? dots.data : nullptr, ds.data, &grads, scratch.data);
    for (int row = 0; row < frame.keys; ++row) {
      for (int lane = 0; lane < frame.lanes; ++lane) {
        const double before = static_cast<double>(start[at(row, lane)]);
        if (before == 0) {
          ASSERT_EQ(ds[at(row, lane)], Real{0}) << "row " << row << " lane " << lane;
          continue;
        }
        meaning.run(score.backward, point(row, lane));
        const double slope = meaning.value(score.dscore);
        ASSERT_NEAR(static_cast<double>(ds[at(row, lane)]), before * slope, 4 * epsilon * std::abs(before) * (1 + std::abs(slope)))
            << "row " << row << " lane " << lane;
        for (const scoring::TrainableRead& read : score.reads) {
          const auto element = static_cast<std::size_t>(meaning.read_element(read));
          const double term = before * meaning.value(read.factor);
          expected[static_cast<std::size_t>(read.param)][element] += term;
          bound_of[static_cast<std::size_t>(read.param)][element] += std::abs(term) + std::abs(before);
        }
      }
    }
    plan.finish(sums.data, dparams, serial);
    for (std::size_t p = 0; p < problem.params.size(); ++p) {
      if (!problem.params[p].gradient.present) continue;
      const std::vector<double> found = problem::values_of(data.dparam(p));
      for (std::size_t i = 0; i < found.size(); ++i) {
        const bool zero = score.params[p].gradient_is_zero;
        ASSERT_NEAR(found[i], zero ? 0 : expected[p][i], 4 * epsilon * bound_of[p][i]) << score.params[p].name << " element " << i;
      }
    }
  }
}

class Catalogue : public testing::TestWithParam<catalogue::Row> {};

TEST_P(Catalogue, TilesMeanWhatTheProgramMeans) {
  for (const std::string& target : tape_targets()) {
    check_case<float>(GetParam().text, target);
    if (HasFatalFailure()) return;
    check_case<double>(GetParam().text, target);
    if (HasFatalFailure()) return;
  }
}

std::string name_of(const testing::TestParamInfo<catalogue::Row>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Scores, Catalogue, testing::ValuesIn(catalogue::scores), name_of);
INSTANTIATE_TEST_SUITE_P(Learnable, Catalogue, testing::ValuesIn(catalogue::learnable), name_of);
INSTANTIATE_TEST_SUITE_P(Masks, Catalogue, testing::ValuesIn(catalogue::masks), name_of);

// ---- every operation of the table ----

/// A tile program of one operation over reads of parameters (full rank), compared with the table's own value. wide: integers beyond 32 bits.
template <class Real>
void check_operation(const scoring::OpRow& row, Type operand_type, const std::string& target, bool wide = false) {
  SCOPED_TRACE(std::string(row.text) + " on " + to_string(operand_type) + "s, " + target + (sizeof(Real) == 8 ? " f64" : " f32"));
  constexpr int keys = 33, lanes = 48;
  // Operands a, b, c are reads at [q_idx, kv_idx]; the result is turned into a real that score is replaced by.
  auto program = std::make_shared<scoring::ScoreProgram>();
  problem::Problem problem;
  problem.dtype = sizeof(Real) == 8 ? DType::f64 : DType::f32;
  scoring::Program& forward = program->forward;
  const auto add = [&](scoring::Instr instr, std::uint8_t depends) {
    forward.code.push_back(std::move(instr));
    forward.depends.push_back(depends);
    return static_cast<scoring::ValueId>(forward.code.size()) - 1;
  };
  const std::uint8_t full = scoring::depends_q | scoring::depends_kv;
  const scoring::ValueId q = add({.op = scoring::Op::q_idx, .type = Type::integer}, scoring::depends_q);
  const scoring::ValueId kv = add({.op = scoring::Op::kv_idx, .type = Type::integer}, scoring::depends_kv);

  std::mt19937 random(11);
  std::vector<std::vector<double>> operands;  // values, [q][kv]
  std::vector<std::vector<Real>> reals;
  std::vector<std::vector<std::int32_t>> integers;
  std::vector<std::vector<std::int64_t>> wide_integers;
  std::vector<std::vector<std::uint8_t>> booleans;
  scoring::Instr instr{.op = row.op, .type = Type::real};
  std::vector<TensorView> views;
  for (int k = 0; k < row.arity; ++k) {
    const char sign = row.signature[static_cast<std::size_t>(k)];
    const Type type = sign == 'r' ? Type::real : sign == 'i' ? Type::integer : sign == 'b' ? Type::boolean : operand_type;
    std::vector<double> values(keys * lanes);
    reals.emplace_back(keys * lanes);
    integers.emplace_back(keys * lanes);
    wide_integers.emplace_back(keys * lanes);
    booleans.emplace_back(keys * lanes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      double value = 0;
      switch (type) {
        case Type::real: {
          std::uniform_real_distribution<double> mantissa(-1, 1);
          std::uniform_int_distribution<int> exponent(-20, 6);
          value = std::ldexp(mantissa(random), exponent(random));
          using Limits = std::numeric_limits<double>;
          const double special[] = {
              0.0, 1.0, -1.0, 2.0, 0.5, 100.0, -100.0, 1e-30, 88.5, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()};
          const std::size_t at = (i + static_cast<std::size_t>(k) * 5 * (i / 37)) % 37;  // each special value meets every other one
          if (at < std::size(special)) value = special[at];
          if (row.op == scoring::Op::pow && k == 0) value = std::abs(value);
          if (row.op == scoring::Op::pow && k == 1) value = std::fmod(value, 8);
          value = static_cast<double>(static_cast<Real>(value));
          break;
        }
        case Type::integer: {
          std::uniform_int_distribution<std::int32_t> small(-9, 9), large(-2147483647 - 1, 2147483647);
          constexpr scoring::Op growing[] = {scoring::Op::mul, scoring::Op::add, scoring::Op::sub, scoring::Op::shift_left};
          const bool grows = std::find(std::begin(growing), std::end(growing), row.op) != std::end(growing);
          value = i % 2 || grows ? small(random) : large(random);
          if (wide && (k == 0 || !grows) && i % 2) value = 512.0 * large(random);
          if ((row.op == scoring::Op::floor_div || row.op == scoring::Op::mod) && k == 1 && value == -1) value = 1;
          if (row.op == scoring::Op::neg || row.op == scoring::Op::abs) value = std::max(value, -2147483647.0);
          break;
        }
        case Type::boolean:
          value = static_cast<double>(random() & 1);
          break;
      }
      values[i] = value;
      reals.back()[i] = static_cast<Real>(value);
      integers.back()[i] = type == Type::real || wide ? 0 : static_cast<std::int32_t>(value);
      wide_integers.back()[i] = type == Type::real ? 0 : static_cast<std::int64_t>(value);
      booleans.back()[i] = static_cast<std::uint8_t>(value != 0);
    }
    operands.push_back(std::move(values));
    problem::ParamSpec spec;
    spec.tensor.present = true;
    spec.tensor.rank = 2;
    spec.tensor.sizes = {lanes, keys};
    spec.tensor.strides = {keys, 1};
    spec.tensor.dtype = type == Type::real ? problem.dtype : type == Type::integer ? (wide ? DType::i64 : DType::i32) : DType::boolean;
    problem.params.push_back(spec);
    TensorView view;
    view.data = type == Type::real              ? static_cast<void*>(reals.back().data())
                : type == Type::integer && wide ? static_cast<void*>(wide_integers.back().data())
                : type == Type::integer         ? static_cast<void*>(integers.back().data())
                                                : static_cast<void*>(booleans.back().data());
    view.dtype = spec.tensor.dtype;
    views.push_back(view);
    program->params.push_back({std::string(1, static_cast<char>('a' + k)), {lanes, keys}, type});
    instr.arg[static_cast<std::size_t>(k)] = add({.op = scoring::Op::read, .type = type, .param = k, .index = {q, kv}}, full);
  }
  const char result = row.signature.back();
  instr.type = result == 'r' ? Type::real : result == 'i' ? Type::integer : result == 'b' ? Type::boolean : operand_type;
  const Type result_type = instr.type;
  scoring::ValueId output = add(std::move(instr), full);
  if (result_type != Type::real) output = add({.op = scoring::Op::to_real, .type = Type::real, .arg = {output, -1, -1}}, full);
  forward.outputs = {output};
  problem.score = program;
  problem.scale = 1;

  const Tape tape(problem, target);
  Aligned<char> memory(tape.data_bytes()), scratch(tape.scratch_bytes(keys, lanes));
  const TapeData bound = tape.bind(views, memory.data);
  const bool has_integers = std::any_of(views.begin(), views.end(), [](const TensorView& view) { return view.dtype == DType::i64; });
  // A real may become any integer, and the difference of two integers of 32 bits has more.
  const bool unbounded = (row.op == scoring::Op::to_integer && operand_type == Type::real) || row.op == scoring::Op::eq ||
                         row.op == scoring::Op::ne || row.op == scoring::Op::lt || row.op == scoring::Op::le;
  if (!unbounded && (!wide || has_integers)) {
    EXPECT_EQ(bound.wide, wide);
  }
  std::vector<std::int32_t> head(lanes, 0), q_idx(lanes);
  for (int i = 0; i < lanes; ++i) q_idx[static_cast<std::size_t>(i)] = i;
  TileFrame frame;
  frame.keys = keys;
  frame.lanes = frame.ld = lanes;
  frame.head = head.data();
  frame.q_idx = q_idx.data();
  Aligned<Real> tile(keys * lanes);
  for (std::size_t i = 0; i < tile.size; ++i) tile[i] = 0;
  tape.apply<Real>(frame, bound, tile.data, tile.data, false, nullptr, scratch.data);

  for (int r = 0; r < keys; ++r) {
    for (int lane = 0; lane < lanes; ++lane) {
      const auto at = static_cast<std::size_t>(lane * keys + r);
      double value[3] = {};
      for (std::size_t k = 0; k < operands.size(); ++k) value[k] = operands[k][at];
      const double exact = row.value(result_type, value[0], value[1], value[2]);
      const double expected = exact, found = static_cast<double>(tile[static_cast<std::size_t>(r * lanes + lane)]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(found)) << value[0] << ", " << value[1] << ", " << value[2] << ": " << found;
        continue;
      }
      // A few units in the last place; results beyond the range of the type become infinite, denormals lose bits.
      const double unit = sizeof(Real) == 8 ? 2.3e-16 : 1.2e-7, tiny = sizeof(Real) == 8 ? 1e-300 : 1e-37;
      if (std::abs(expected) > 0.99 * static_cast<double>(std::numeric_limits<Real>::max())) {
        EXPECT_GT(found * (expected > 0 ? 1 : -1), 0.98 * static_cast<double>(std::numeric_limits<Real>::max()))
            << value[0] << ", " << value[1];
        continue;
      }
      // The factor log2(e) is spread over sums: their error is that of the terms.
      const double terms = row.op == scoring::Op::add || row.op == scoring::Op::sub ? std::abs(value[0]) + std::abs(value[1]) : 0;
      EXPECT_NEAR(found, expected, 5 * unit * (std::abs(expected) + terms) + tiny) << value[0] << ", " << value[1] << ", " << value[2];
    }
  }
}

TEST(TapeOperations, EqualTheTable) {
  for (const std::string& target : tape_targets()) {
    for (const scoring::OpRow& row : scoring::op_rows()) {
      if (!row.value || row.op == scoring::Op::stop_gradient) continue;  // which is in no program
      const bool generic = row.signature.find('n') != std::string_view::npos || row.signature.find('t') != std::string_view::npos;
      for (const Type type : {Type::real, Type::integer, Type::boolean}) {
        if (!generic && type != Type::real) continue;
        if (row.signature.find('n') != std::string_view::npos && type == Type::boolean) continue;
        check_operation<float>(row, type, target);
        check_operation<double>(row, type, target);
        check_operation<float>(row, type, target, true);
        check_operation<double>(row, type, target, true);
      }
    }
  }
}

// ---- dropout ----

template <class Real>
void check_dropout(const std::string& target) {
  SCOPED_TRACE(target);
  const Lanes lanes = lane_patterns(3, 40)[1];
  TileFrame frame;
  frame.lanes = lanes.valid;
  frame.ld = static_cast<int>(lanes.head.size()) + 16;
  frame.batch = 2;
  frame.head = lanes.head.data();
  frame.q_idx = lanes.q_idx.data();
  for (const std::int32_t kv_idx : {0, 5, 1022}) {
    for (const int keys : {1, 3, 8, 21}) {
      frame.kv_idx = kv_idx;
      frame.keys = keys;
      const TileDropout dropout{0x123456789ABCDEFull, 0x55667788ull << 7, base::dropout_threshold(0.3), 1 / 0.7, 3};
      const auto elements = static_cast<std::size_t>(keys * frame.ld);
      Aligned<Real> first(elements), second(elements);
      for (std::size_t i = 0; i < elements; ++i) {
        first[i] = static_cast<Real>(1 + i);
        second[i] = static_cast<Real>(-2);
      }
      apply_dropout(target, frame, dropout, first.data, second.data);
      for (int row = 0; row < keys; ++row) {
        for (int lane = 0; lane < frame.lanes; ++lane) {
          const auto l = static_cast<std::size_t>(lane);
          const auto at = static_cast<std::size_t>(row * frame.ld + lane);
          const std::uint32_t bits =
              base::dropout_bits(dropout.seed, dropout.offset, static_cast<std::uint32_t>(2 * 3 + lanes.head[l]),
                                 static_cast<std::uint32_t>(lanes.q_idx[l]), static_cast<std::uint32_t>(kv_idx + row));
          const bool keep = bits >= dropout.threshold;
          ASSERT_EQ(first[at], keep ? static_cast<Real>(1 + at) * static_cast<Real>(dropout.scale) : Real{0}) << row << ' ' << lane;
          ASSERT_EQ(second[at], keep ? Real{-2} * static_cast<Real>(dropout.scale) : Real{0}) << row << ' ' << lane;
        }
      }
    }
  }
}

/// A constant factor must not round what cancels: of time stamps and coordinates a float holds little more than the difference.
TEST(TapeOperations, TakeDifferencesBeforeTheyAreScaled) {
  const char* scores[] = {
      "score + 0.01 * (t[q_idx] - t[kv_idx])",
      "score + (t[q_idx] - t[kv_idx]) / 3",
      "score - 0.1 * (t[q_idx] - t[kv_idx] - 5)",
      "score + 0.3 * (7 - (t[kv_idx] - t[q_idx]))",
      "score - 0.7 * (0.03 * (u[kv_idx, q_idx] - t[q_idx]))",
      "0.1 * (score + 3 * (t[q_idx] - t[kv_idx]))",
      "score + 0.01 * min(t[q_idx] - t[kv_idx], 3 * (t[kv_idx] - t[q_idx]))",
      "score - 0.05 * ((t[q_idx] - t[kv_idx]) ** 2 + (u[0, q_idx] - u[0, kv_idx]) ** 2)",
      "score + 0.01 * where(head == 0, t[q_idx] - t[kv_idx], -t[q_idx] + t[kv_idx])",
  };
  for (const char* score : scores) {
    problem::CaseData data(problem::parse_line(std::string("forward f32 b1 h2 q32 d8 score=\"") + score +
                                               "\" param=\"t: real[32]\" param=\"u: real[32, 32]\""));
    const problem::Problem problem = problem::make_problem(data.line().attention, data.forward_inputs(), data.forward_outputs());
    std::mt19937 random(3);
    std::vector<TensorView> params;
    for (std::size_t i = 0; i < problem.params.size(); ++i) {
      params.push_back(data.param(i));
      std::vector<double> stamps(problem.params[i].param.shape().size() == 1 ? 32 : 32 * 32);
      for (double& stamp : stamps) stamp = 12345678 + static_cast<double>(random() % 64);
      problem::set_values(params.back(), stamps);
    }
    Meaning meaning(problem, data);
    for (const std::string& target : tape_targets()) {
      SCOPED_TRACE(target + ": " + score);
      const Tape tape(problem, target);
      Aligned<char> memory(tape.data_bytes()), scratch(tape.scratch_bytes(32, 32));
      const TapeData bound = tape.bind(params, memory.data);
      std::vector<std::int32_t> head(32, 1), q_idx(32);
      for (int i = 0; i < 32; ++i) q_idx[static_cast<std::size_t>(i)] = i;
      TileFrame frame;
      frame.keys = 32, frame.lanes = frame.ld = 32;
      frame.head = head.data(), frame.q_idx = q_idx.data();
      Aligned<float> tile(32 * 32);
      for (std::size_t i = 0; i < tile.size; ++i) tile[i] = 0;
      tape.apply<float>(frame, bound, tile.data, tile.data, false, nullptr, scratch.data);
      double largest = 0;
      for (std::int32_t row = 0; row < 32; ++row)
        for (std::int32_t lane = 0; lane < 32; ++lane) {
          const scoring::Point point{.score = 0, .head = 1, .q_idx = lane, .kv_idx = row, .seqlen_q = 32, .seqlen_kv = 32};
          const double expected = meaning.run(problem.score->forward, point);
          largest = std::max(largest, std::abs(expected));
          EXPECT_NEAR(static_cast<double>(tile[static_cast<std::size_t>(row * 32 + lane)]), expected, 1e-6 * std::abs(expected));
        }
      EXPECT_GT(largest, 0.1);
      EXPECT_LT(largest, 1000);
    }
  }
}

/// Divisors that a whole tile shares take a way of their own, by reciprocals.
TEST(TapeOperations, DivideByASharedDivisorExactly) {
  const std::int32_t divisors[] = {1, 2, 3, 5, 7, 49, 64, 1000, 65537, 4194305, 1073741824, 2147483646, 2147483647, -3, 0};
  problem::CaseData data(problem::parse_line(
      "forward f64 b1 h1 q32:64 d8 score=\"score + (n[q_idx, kv_idx] // d[0])\" param=\"n: integer[32, 64]\" param=\"d: integer[1]\""));
  problem::CaseData rest(problem::parse_line(
      "forward f64 b1 h1 q32:64 d8 score=\"score + n[q_idx, kv_idx] % d[0]\" param=\"n: integer[32, 64]\" param=\"d: integer[1]\""));
  std::mt19937 random(11);
  for (const std::int32_t divisor : divisors) {
    std::vector<double> numbers(32 * 64);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto any = static_cast<std::int32_t>(random());
      const std::int64_t near =
          divisor == 0 ? 0 : std::int64_t{any % 1000} * divisor + static_cast<int>(random() % 3) - 1;  // about multiples
      const bool small = i < 1024;  // whole vectors of small numbers, and mixed ones
      numbers[i] = small ? any % 4194304 : i % 2 ? any : static_cast<double>(std::clamp<std::int64_t>(near, INT32_MIN, INT32_MAX));
      if (small && i % 2 && std::abs(near) < 4194304) numbers[i] = static_cast<double>(near);
    }
    numbers[1025] = INT32_MIN, numbers[1026] = INT32_MAX, numbers[1027] = -1;
    for (problem::CaseData* c : {&data, &rest}) {
      problem::set_values(c->param(0), numbers);
      problem::set_values(c->param(1), {static_cast<double>(divisor)});
      const problem::Problem problem = problem::make_problem(c->line().attention, c->forward_inputs(), c->forward_outputs());
      for (const std::string& target : tape_targets()) {
        const Tape tape(problem, target);
        Aligned<char> memory(tape.data_bytes()), scratch(tape.scratch_bytes(64, 32));
        const TapeData bound = tape.bind({c->param(0), c->param(1)}, memory.data);
        std::vector<std::int32_t> head(32, 0), q_idx(32);
        for (int i = 0; i < 32; ++i) q_idx[static_cast<std::size_t>(i)] = i;
        TileFrame frame;
        frame.keys = 64, frame.lanes = frame.ld = 32;
        frame.head = head.data(), frame.q_idx = q_idx.data();
        Aligned<double> tile(64 * 32);
        for (std::size_t i = 0; i < tile.size; ++i) tile[i] = 0;
        tape.apply<double>(frame, bound, tile.data, tile.data, false, nullptr, scratch.data);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          const auto n = static_cast<std::int64_t>(numbers[i]), by = std::int64_t{divisor};
          const std::int64_t quotient = by == 0 ? 0 : (n - ((n % by + by) % by)) / by;
          const auto exact = static_cast<double>(c == &data ? quotient : by == 0 ? 0 : n - quotient * by);
          ASSERT_NEAR(tile[i % 64 * 32 + i / 64], exact, 1e-14 * std::abs(exact)) << target << ": " << n << " by " << by;
        }
      }
    }
  }
}

TEST(TapeDropout, TheSameBitsAsTheReference) {
  for (const std::string& target : tape_targets()) {
    check_dropout<float>(target);
    check_dropout<double>(target);
  }
}

// ---- faults and partitions ----

problem::Problem problem_of(const problem::CaseData& data) {
  return problem::make_problem(data.line().attention, data.backward_inputs(), data.backward_outputs());
}

TEST(TapeFaults, NameTheParameterAndThePlace) {
  const problem::CaseData data(
      problem::parse_line("backward f32 b1 h2 q20 d16 score=\"score + b[i[q_idx] + kv_idx]\" mask=\"causal()\" param=\"b: real[30]\" "
                          "param=\"i: integer[20] constant(12)\""));
  const problem::Problem problem = problem_of(data);
  const Tape tape(problem, "scalar");
  Aligned<char> memory(tape.data_bytes());
  const TapeData bound = tape.bind({data.param(0), data.param(1)}, memory.data);
  const std::vector<std::int32_t> head(16, 1);
  std::vector<std::int32_t> q_idx(16);
  for (int i = 0; i < 16; ++i) q_idx[static_cast<std::size_t>(i)] = 4 + i;
  TileFrame frame;
  frame.lanes = frame.ld = 16;
  frame.keys = 18;
  frame.head = head.data();
  frame.q_idx = q_idx.data();
  EXPECT_FALSE(tape.find_outside<float>(frame, bound, nullptr).has_value());  // 12 + 17 is the last element
  frame.keys = 19;
  const auto fault = tape.find_outside<float>(frame, bound, nullptr);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(problem::describe(*fault), "parameter b: index 30 in dimension 0 at batch 0, head 1, q_idx 18, kv_idx 18; expected 0 to 29");
}

TEST(ParamGradPlans, SayHowEachReadIsSummed) {
  const problem::CaseData data(problem::parse_line(
      "backward f32 b2 h8 q9 d16 grads=none score=\"score * c[head] + a[head, q_idx - kv_idx + 8] + b[kv_idx] + f[head, q_idx, kv_idx]\" "
      "param=\"a: real[8, 17] grad\" param=\"b: real[9] grad\" param=\"c: real[8] grad\" param=\"f: real[8, 9, 9] grad\""));
  const problem::Problem problem = problem_of(data);
  Explanation explanation;
  ParamGradPlan(problem, 1).describe(explanation, problem, Tape(problem, "scalar"));
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"gradient of a", "along diagonals, in tiles of several heads pair by pair (tape): diagonal read, in fp64, 2 copies"},
      {"gradient of b", "along columns (tape): column read, in fp64, 16 copies"},
      {"gradient of c", "over a tile, in tiles of several heads along rows (tape): uniform read, in fp64, 2 copies"},
      {"gradient of f", "pair by pair (tape): element read, in fp32, 2 copies"}};
  EXPECT_EQ(explanation.details, expected);
}

/// Ranks of the tape follow from its steps: they must be those that the score compiler found.
TEST(ParamGradPlans, SumTermsAsTheReadVaries) {
  for (const catalogue::Row& row : catalogue::learnable) {
    const problem::CaseData data(problem::parse_line(std::string("backward f32 ") + row.text));
    const problem::Problem problem = problem_of(data);
    const Tape tape(problem, "scalar");
    for (std::size_t r = 0; r < problem.score->reads.size(); ++r)
      EXPECT_EQ(tape.sums_of_reads(true)[r], problem.score->reads[r].over) << row.name;
  }
}

TEST(ParamGradPlans, ShareWhatPartitionsDoNotShare) {
  const auto plan_of = [](const std::string& text, std::int64_t splits) {
    const problem::CaseData data(problem::parse_line("backward f32 grads=none " + text));
    return ParamGradPlan(problem_of(data), splits);
  };
  // Different heads touch different elements: no copies beyond those of the batch.
  const ParamGradPlan per_head = plan_of("b2 h8 q9 d16 score=\"score + b[head, q_idx, kv_idx]\" param=\"b: real[8, 9, 9] grad\"", 1);
  EXPECT_EQ(per_head.partitions(), 16);
  EXPECT_EQ(per_head.workspace_bytes(), 2u * 2816);  // 8 * 9 * 9 floats, rounded up to 256 bytes
  const ParamGradPlan each = plan_of("b2 h8 q9 d16 score=\"score + b[batch, head, q_idx, kv_idx]\" param=\"b: real[2, 8, 9, 9] grad\"", 1);
  EXPECT_EQ(each.partitions(), 16);
  EXPECT_EQ(each.workspace_bytes(), 0u);  // one copy: the caller's tensor itself
  // Different queries, too: the shares of a head need none.
  const ParamGradPlan shares = plan_of("b1 h2 q9 d16 score=\"score + b[head, q_idx, kv_idx // 2]\" param=\"b: real[2, 9, 5] grad\"", 4);
  EXPECT_EQ(shares.partitions(), 8);
  EXPECT_EQ(shares.workspace_bytes(), 768u);  // one copy, of 2 * 9 * 5 doubles
  const ParamGradPlan grouped = plan_of("b1 h2:1 q9 d16 score=\"score + b[q_idx, kv_idx]\" param=\"b: real[9, 9] grad\"", 4);
  EXPECT_EQ(grouped.workspace_bytes(), 4u * 512);  // other heads of the group have the same queries
  // A table for all: at most 64 copies.
  const ParamGradPlan table = plan_of("b32 h16 q9 d16 score=\"score + b[kv_idx]\" param=\"b: real[9] grad\"", 4);
  EXPECT_LE(table.partitions(), 64);
  EXPECT_GE(table.partitions(), 32);
  // Large: the budget bounds the copies.
  const ParamGradPlan large = plan_of("b2 h8 q3000 d16 score=\"score + b[q_idx, kv_idx]\" param=\"b: real[3000, 3000] grad\"", 1);
  EXPECT_EQ(large.partitions(), 2);
  // Tasks of a partition are runs, every partition has a task, and equal parts of the sums go to equal places.
  for (const ParamGradPlan* plan : {&per_head, &each, &table, &large}) {
    std::vector<bool> seen(static_cast<std::size_t>(plan->partitions()));
    const bool is_table = plan == &table;
    for (std::int64_t b = 0; b < (is_table ? 32 : 2); ++b)
      for (std::int64_t h = 0; h < (is_table ? 16 : 8); ++h)
        for (std::int64_t s = 0; s < (is_table ? 4 : 1); ++s) {
          const std::int64_t p = plan->partition(b, h, s);
          ASSERT_LT(p, plan->partitions());
          seen[static_cast<std::size_t>(p)] = true;
        }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](bool s) { return s; }));
  }
}

/// Heads touch elements of others where two reads have `head` in different dimensions, or where it is clamped.
TEST(ParamGradPlans, CopyWhatPartitionsShare) {
  for (const char* text : {"score=\"score * (1 + b[head, kv_idx]) + b[kv_idx, head]\" param=\"b: real[8, 8] grad\"",
                           "score=\"score * b[head, kv_idx]\" param=\"b: real[4, 8] grad\""}) {
    const problem::CaseData data(problem::parse_line(std::string("backward f32 grads=none b1 h8 q8 d16 ") + text));
    const problem::Problem problem = problem_of(data);
    const ParamGradPlan plan(problem, 1);
    const std::size_t one = static_cast<std::size_t>(base::numel(problem.params[0].param.shape())) * sizeof(double);
    EXPECT_EQ(plan.partitions(), 8) << text;
    EXPECT_EQ(plan.workspace_bytes(), 8 * one) << text;
  }
}

#if defined(__linux__)
// ---- more than 2^31 elements ----

TEST(TapeAddresses, ReachBeyondTwoToTheThirtyOneElements) {
  constexpr std::int64_t rows = 65536, columns = 40000, first_row = rows - 20, first_column = columns - 33;
  const test::SparseMemory values(rows * columns * 4), sums(rows * columns * 4);
  if (!values.there() || !sums.there()) GTEST_SKIP() << "no address space";
  using namespace symbols;
  const Param bias("bias", {rows, columns});
  Attention attention{.score_mod = score + bias(q_idx + first_row, kv_idx + first_column)};
  // And through an index that varies freely over the tile.
  Attention indirect{.score_mod = score + bias(q_idx + first_row, min(kv_idx, q_idx + 1000) + first_column)};
  for (const Attention& a : {attention, indirect}) {
    BackwardInputs in;
    BackwardOutputs out;
    const TensorView shape(nullptr, DType::f32, {1, 20, 1, 8}), keys(nullptr, DType::f32, {1, 33, 1, 8});
    in.q = in.out = in.dout = out.dq = shape;
    in.k = in.v = out.dk = out.dv = keys;
    in.lse = TensorView(nullptr, DType::f32, {1, 1, 20});
    in.params = {{bias, TensorView(values.data(), DType::f32, {rows, columns})}};
    out.dparams = {{bias, TensorView(sums.data(), DType::f32, {rows, columns})}};
    const problem::Problem problem = problem::make_problem(a, in, out);
    for (const std::string& target : tape_targets()) {
      const Tape tape(problem, target);
      TileFrame frame;
      frame.keys = 33;
      frame.lanes = 20;
      frame.ld = 32;
      std::vector<std::int32_t> head(32, 0), q_idx(32);
      for (int i = 0; i < 32; ++i) q_idx[static_cast<std::size_t>(i)] = std::min(i, 19);
      frame.head = head.data();
      frame.q_idx = q_idx.data();
      auto* element = static_cast<float*>(values.data());
      auto* sum = static_cast<float*>(sums.data());
      const auto place = [&](int q, int kv) { return (first_row + q) * columns + first_column + kv; };
      for (int q = 0; q < 20; ++q)
        for (int kv = 0; kv < 33; ++kv) {
          element[place(q, kv)] = static_cast<float>(q * 100 + kv);
          sum[place(q, kv)] = 0;
        }
      Aligned<char> memory(tape.data_bytes()), scratch(tape.scratch_bytes(frame.keys, frame.ld));
      const TapeData bound = tape.bind({in.params[0].tensor}, memory.data);
      Aligned<float> tile(33 * 32);
      for (std::size_t i = 0; i < tile.size; ++i) tile[i] = 0;
      tape.apply<float>(frame, bound, tile.data, tile.data, false, nullptr, scratch.data);
      TapeGrads grads{};
      grads.params[0] = {sum, false};
      Aligned<float> ds(33 * 32);
      for (int kv = 0; kv < 33; ++kv)
        for (int lane = 0; lane < 32; ++lane)
          ds[static_cast<std::size_t>(kv * 32 + lane)] = lane < 20 ? static_cast<float>(kv * 100 + lane) : 0.0f;
      tape.differentiate<float>(frame, bound, nullptr, ds.data, &grads, scratch.data);
      for (int q = 0; q < 20; ++q)
        for (int kv = 0; kv < 33; ++kv) {
          ASSERT_NEAR(tile[static_cast<std::size_t>(kv * 32 + q)], (q * 100 + kv), 1e-3) << target;
          ASSERT_EQ(sum[place(q, kv)], static_cast<float>(kv * 100 + q)) << target;
        }
    }
  }
}
#endif

// ---- random programs ----

/// Pairs of a tile where the tape and scoring::evaluate disagree, for a random score, its derivative and a random mask.
template <class Real>
struct Disagreements {
  int pairs = 0, scores = 0, slopes = 0, masks = 0;

  void count(unsigned seed, const std::string& target) {
    test::RandomExpr random(seed);
    problem::Line line =
        problem::parse_line(std::string("backward ") + (sizeof(Real) == 8 ? "f64" : "f32") +
                            " b3 h4 q32:29 d8 scale=1 param=\"weights: real[32] normal(1) grad\" param=\"table: real[4, 32] normal(1)\" "
                            "param=\"scalar: real[] normal(1)\" param=\"ids: integer[32] integers(-4, 20)\" param=\"flags: boolean[32]\"");
    const Expr weights = line.params[0].param(symbols::kv_idx);
    line.attention.score_mod = random.real(1 + static_cast<int>(seed % 5)) + 0.1 * symbols::score * weights;
    line.attention.mask = random.boolean(1 + static_cast<int>(seed % 4));
    const problem::CaseData data(line);
    std::optional<problem::Problem> made;
    try {
      made = problem::make_problem(line.attention, data.backward_inputs(), data.backward_outputs());
    } catch (const Error&) {
      return;  // a mask that reads the score, an integer divided by the constant 0
    }
    const problem::Problem& problem = *made;
    const scoring::ScoreProgram& score = *problem.score;
    const Tape tape(problem, target);
    Meaning meaning(problem, data);
    std::vector<TensorView> params;
    for (std::size_t i = 0; i < problem.params.size(); ++i) params.push_back(data.param(i));
    Aligned<char> memory(tape.data_bytes());
    const TapeData bound = tape.bind(params, memory.data);
    for (const Lanes& lanes : lane_patterns(4, 32)) {
      TileFrame frame;
      frame.lanes = lanes.valid;
      frame.ld = static_cast<int>(lanes.head.size());
      frame.keys = 24;
      frame.kv_idx = 3;
      frame.batch = 2;
      frame.seqlen_q = 32;
      frame.seqlen_kv = 29;
      frame.head = lanes.head.data();
      frame.q_idx = lanes.q_idx.data();
      const auto elements = static_cast<std::size_t>(frame.keys * frame.ld);
      Aligned<Real> dots(elements), scores(elements), masked(elements), ds(elements);
      Aligned<char> scratch(tape.scratch_bytes(frame.keys, frame.ld));
      std::mt19937 numbers(seed);
      std::normal_distribution<double> normal(0, 2);
      for (std::size_t i = 0; i < elements; ++i) {
        dots[i] = static_cast<Real>(normal(numbers));
        ds[i] = 1;
      }
      tape.apply<Real>(frame, bound, dots.data, scores.data, false, nullptr, scratch.data);
      tape.apply<Real>(frame, bound, dots.data, masked.data, true, nullptr, scratch.data);
      tape.differentiate<Real>(frame, bound, dots.data, ds.data, nullptr, scratch.data);
      for (int row = 0; row < frame.keys; ++row) {
        for (int lane = 0; lane < frame.lanes; ++lane) {
          const auto at = static_cast<std::size_t>(row * frame.ld + lane), l = static_cast<std::size_t>(lane);
          const scoring::Point point{.score = static_cast<double>(dots[at]),
                                     .batch = 2,
                                     .head = lanes.head[l],
                                     .q_idx = lanes.q_idx[l],
                                     .kv_idx = 3 + row,
                                     .seqlen_q = 32,
                                     .seqlen_kv = 29};
          const bool keep = score.mask.empty() || meaning.run(score.mask, point) != 0;
          const double expected = meaning.run(score.forward, point), found = static_cast<double>(scores[at]);
          meaning.run(score.backward, point);
          const double slope = meaning.value(score.dscore);
          ++pairs;
          masks += keep ? !(masked[at] == scores[at] || (std::isnan(masked[at]) && std::isnan(scores[at])))
                        : masked[at] != -std::numeric_limits<Real>::infinity();
          scores_differ(found, expected, this->scores);
          scores_differ(static_cast<double>(ds[at]), slope, slopes);
        }
      }
    }
  }

  static void scores_differ(double found, double expected, int& count) {
    if (std::isnan(expected) || std::abs(expected) > 1e6) return;  // ill-conditioned: nothing to compare
    count += !(std::abs(found - expected) <= 1e-6 * (1 + std::abs(expected)));
  }
};

TEST(TapeFuzz, RandomProgramsMeanWhatTheyMean) {
  for (const std::string& target : tape_targets()) {
    Disagreements<double> wide;
    Disagreements<float> narrow;
    for (unsigned seed = 0; seed < 400; ++seed) {
      wide.count(seed, target);
      narrow.count(seed, target);
    }
    EXPECT_GT(wide.pairs, 100000);
    // Masks do not depend on rounding. A random score may lose all digits by cancellation or sit on an edge, rarely in double.
    EXPECT_EQ(wide.masks, 0) << target;
    EXPECT_EQ(narrow.masks, 0) << target;
    EXPECT_LT(wide.scores, wide.pairs / 1000) << target;
    EXPECT_LT(wide.slopes, wide.pairs / 1000) << target;
    EXPECT_LT(narrow.scores, narrow.pairs / 10) << target;
  }
}

}  // namespace
}  // namespace foveal::cpu
