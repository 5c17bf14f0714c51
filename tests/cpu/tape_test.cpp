// The tape against scoring::evaluate in double, pair by pair: every operation, every row of the catalogue, every reduction of a gradient,
// on every target that this machine runs, for lanes of one head, of stacked heads and in disorder.
#include "cpu/tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "catalogue/catalogue.h"
#include "problem/case_data.h"
#include "score/evaluate.h"
#include "score/op_table.h"

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
  double value(scoring::ValueId id) const { return values_[static_cast<std::size_t>(id)]; }
  std::int64_t read_element(const scoring::TrainableRead& read) const {
    std::vector<std::int64_t> index;
    for (scoring::ValueId id : read.index) index.push_back(static_cast<std::int64_t>(value(id)));
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
  std::vector<double> values_;
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
          double expected = tape.has_score() ? meaning.run(score.forward, point(row, lane)) * std::numbers::log2e
                                             : static_cast<double>(dots[at(row, lane)]);
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

    ASSERT_FALSE(tape.find_fault(frame, bound, dots.data).has_value());

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
    Aligned<char> sums(plan.workspace_bytes());
    const Executor serial = base::default_executor(1);
    plan.clear(sums.data, serial);
    const TapeGrads grads = plan.grads(sums.data, plan.partition(frame.batch, 0, 0));
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
    // Where there is one tile there is one copy of the sums that matters: finish() adds it to zeros.
    std::vector<TensorView> dparams;
    for (std::size_t p = 0; p < problem.params.size(); ++p) dparams.push_back(data.dparam(p));
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

}  // namespace
}  // namespace foveal::cpu
