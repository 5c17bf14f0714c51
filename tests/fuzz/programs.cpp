// Random score and mask programs, for so many seconds or until it is interrupted, against an evaluator that shares nothing with the compiler:
// it walks the nodes as they were built, with dual numbers in fp64. Each seed is checked in five ways of its own:
//
//   value       the simplified program                         derivative  every gradient that the backward program has
//   bounds      intervals over a box hold at its points        blocks      block masks hold for every pair, by brute force
//   call        forward and backward through the public API on every CPU target, against softmax and its derivative written down
//
// Writes one JSON object; fails where one disagrees, and prints the seed and the program.
//
//   fuzz_programs FIRST_SEED SECONDS [FILE]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <utility>

#include "arguments.h"
#include "foveal/foveal.h"
#include "mask/block_mask.h"
#include "score/dual.h"
#include "score/evaluate.h"
#include "score/interval.h"
#include "score/program.h"
#include "score/random_expr.h"

using namespace foveal;

namespace {

using scoring::Point;

constexpr std::int64_t positions = 32;

TensorView contiguous(void* data, DType dtype, const std::vector<std::int64_t>& sizes) {
  TensorView view;
  view.data = data, view.dtype = dtype, view.rank = static_cast<int>(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) view.sizes[d] = sizes[d], view.strides[d] = stride;
  return view;
}

/// The data of the parameters of RandomExpr, a fixed function of the place; indices outside are clamped, as in unchecked runs.
class Data : public scoring::ParamReader {
 public:
  explicit Data(const std::vector<Param>& params) : params_(params) {
    for (const Param& param : params) {
      std::int64_t size = 1;
      for (const std::int64_t extent : param.shape()) size *= extent;
      std::vector<double>& values = reals_.emplace_back();
      for (std::int64_t at = 0; at < size; ++at) {
        const double noise = std::sin(static_cast<double>(at) * 12.9898 + static_cast<double>(param.name().size()) * 78.233) * 43758.5453;
        const double unit = noise - std::floor(noise);
        values.push_back(param.type() == Type::real      ? 4 * unit - 2
                         : param.type() == Type::boolean ? unit < 0.5
                                                         : std::floor(unit * 20) - 4);
      }
      integers_.emplace_back(values.begin(), values.end());
      booleans_.emplace_back(values.begin(), values.end());
    }
  }
  double read(std::int32_t param, const std::int64_t* index) const override {
    const auto p = static_cast<std::size_t>(param);
    return reals_[p][place(params_[p].shape(), index)];
  }
  static std::size_t place(const std::vector<std::int64_t>& shape, const std::int64_t* index) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + std::clamp<std::int64_t>(index[d], 0, shape[d] - 1);
    return static_cast<std::size_t>(at);
  }
  /// The same as tensors of f64, i32 and booleans.
  TensorView tensor(std::size_t p) {
    const std::vector<std::int64_t>& shape = params_[p].shape();
    const Type type = params_[p].type();
    void* data = type == Type::real      ? static_cast<void*>(reals_[p].data())
                 : type == Type::integer ? static_cast<void*>(integers_[p].data())
                                         : static_cast<void*>(booleans_[p].data());
    return contiguous(data, type == Type::real ? DType::f64 : type == Type::integer ? DType::i32 : DType::boolean, shape);
  }

 private:
  const std::vector<Param>& params_;
  std::vector<std::vector<double>> reals_;
  std::vector<std::vector<std::int32_t>> integers_;
  std::vector<std::vector<std::uint8_t>> booleans_;
};

using Place = std::pair<std::string, std::size_t>;  // an element of a parameter

/// Reads for the evaluator by dual numbers: the derivative is with respect to one element; `seen`, if any, takes the elements of reals that are read.
test::DualEvaluator::Read reader(const std::vector<Param>& params, const Data& data, const Place& seeded,
                                 std::vector<Place>* seen = nullptr) {
  return [&params, &data, seeded, seen](const Param::Info& info, const std::vector<std::int64_t>& index) {
    std::int32_t p = 0;
    while (params[static_cast<std::size_t>(p)].name() != info.name) ++p;
    const Place place{info.name, Data::place(info.shape, index.data())};
    if (seen && info.type == Type::real) seen->push_back(place);
    return test::Dual{data.read(p, index.data()), place == seeded ? 1.0 : 0.0};
  };
}

/// What is wrong, and with what; "" when nothing is.
struct Finding {
  std::string check, what;
};

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)) || (std::isinf(a) && std::isinf(b)); }

/// Where the derivative is not finite, or beyond what double arithmetic can tell, there is nothing to compare.
bool close(double a, double b, double value) {
  if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(value) || std::abs(a) > 1e12) return true;
  return std::abs(a - b) <= 1e-7 * (1 + std::abs(a) + std::abs(b)) + 1e-12 * std::abs(value);
}

class Fuzzer {
 public:
  explicit Fuzzer(std::uint64_t seed) : random_(seed), make_(static_cast<unsigned>(seed)), data_(make_.params()) {}

  /// How often each check compared something.
  std::map<std::string, long> counts;

  void run() {
    const int depth = 1 + pick(0, 3);
    try {
      score_ = make_.real(depth);
      do mask_ = make_.boolean(depth);
      while (reads(mask_, "score"));  // refused
      text_ = "score=\"" + to_string(score_) + "\" mask=\"" + to_string(mask_) + "\"";
      scoring::Request request{
          .score_mod = score_, .mask = mask_, .params = make_.params(), .backward = true, .row_constant_terms_matter = true};
      for (const Param& param : make_.params())
        request.wants_gradient.push_back(param.type() == Type::real && reads(score_, param.name() + "["));
      program_ = scoring::compile(request);
    } catch (const Error& error) {
      if (std::string(error.what()).find("divided by the constant 0") == std::string::npos) fail("value", error.what());
      ++counts["refused"];
      return;
    }
    for (int i = 0; i < 6; ++i) value_and_derivative();
    for (int i = 0; i < 3; ++i) bounds();
    for (int i = 0; i < 2; ++i) blocks();
    call();
  }

  const std::string& text() const { return text_; }
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  std::int64_t pick64(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random_); }
  int pick(int low, int high) { return static_cast<int>(pick64(low, high)); }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  static bool reads(const Expr& expr, const std::string& what) { return to_string(expr).find(what) != std::string::npos; }
  void fail(const std::string& check, const std::string& what) { findings_.push_back({check, what}); }

  Point random_point() {
    return {.score = real(-3, 3),
            .batch = pick64(0, 2),
            .head = pick64(0, 3),
            .q_idx = pick64(0, positions - 1),
            .kv_idx = pick64(0, positions - 1),
            .seqlen_q = positions,
            .seqlen_kv = 29};
  }

  void value_and_derivative() {
    const Point point = random_point();
    test::DualEvaluator direct(point, 1, reader(make_.params(), data_, {}));
    const bool wanted_kept = direct(mask_).value != 0;
    const auto [wanted, slope] = direct(score_);
    if (direct.divided_by_zero()) return;
    std::vector<scoring::Scalar> values(program_.forward.code.size() + program_.mask.code.size() + program_.backward.code.size());
    const bool kept = program_.mask.empty() || scoring::evaluate(program_.mask, point, data_, values.data()) != 0;
    ++counts["value"];
    if (kept != (wanted_kept && wanted != -INFINITY) && !(kept && wanted_kept)) return fail("value", "the mask says otherwise");
    if (!kept) return;
    const double found = program_.forward.empty() ? point.score : scoring::evaluate(program_.forward, point, data_, values.data());
    if (!same(wanted, found)) return fail("value", std::to_string(wanted) + " became " + std::to_string(found));
    if (program_.backward.empty()) return;
    scoring::evaluate(program_.backward, point, data_, values.data());
    ++counts["derivative"];
    if (!close(slope, values[static_cast<std::size_t>(program_.dscore)].real, wanted)) return fail("derivative", "by the score");
    std::map<Place, double> gradients;
    for (const scoring::TrainableRead& read : program_.reads) {
      const Param& param = make_.params()[static_cast<std::size_t>(read.param)];
      std::vector<std::int64_t> index;
      for (std::size_t d = 0; d < param.shape().size(); ++d) index.push_back(values[static_cast<std::size_t>(read.index[d])].integer);
      gradients[{param.name(), Data::place(param.shape(), index.data())}] += values[static_cast<std::size_t>(read.factor)].real;
    }
    std::vector<Place> seen;
    test::DualEvaluator(point, 0, reader(make_.params(), data_, {}, &seen))(score_);
    for (const Place& place : seen) gradients[place] += 0;
    for (const auto& [place, gradient] : gradients) {
      const double by_element = test::DualEvaluator(point, 0, reader(make_.params(), data_, place))(score_).derivative;
      if (!close(by_element, gradient, wanted)) return fail("derivative", "by " + place.first);
    }
  }

  scoring::Interval range(std::int64_t top) {
    const std::int64_t a = pick64(0, top), b = pick64(0, top);
    return {static_cast<double>(std::min(a, b)), static_cast<double>(std::max(a, b))};
  }

  void bounds() {
    if (program_.forward.empty()) return;
    scoring::Box box{range(2), range(3), range(positions - 1), range(positions - 1), {positions, positions}, {29, 29}};
    box.score = {-1.5, 2};
    const auto held = scoring::evaluate(program_.forward, box, scoring::ReadRanges());
    std::vector<scoring::Scalar> values(program_.forward.code.size());
    const auto inside = [&](const scoring::Interval& x) {
      return pick64(static_cast<std::int64_t>(x.low), static_cast<std::int64_t>(x.high));
    };
    for (int i = 0; i < 20; ++i) {
      const Point point{.score = real(-1.5, 2),
                        .batch = inside(box.batch),
                        .head = inside(box.head),
                        .q_idx = inside(box.q_idx),
                        .kv_idx = inside(box.kv_idx),
                        .seqlen_q = positions,
                        .seqlen_kv = 29};
      for (const scoring::Precision precision : {scoring::Precision::f64, scoring::Precision::f32}) {
        scoring::evaluate(program_.forward, point, data_, values.data(), precision);
        for (scoring::ValueId id = 0; id < program_.forward.size(); ++id) {
          const scoring::Scalar at_pair = values[static_cast<std::size_t>(id)];
          const double value = program_.forward[id].type == Type::real ? at_pair.real : static_cast<double>(at_pair.integer);
          ++counts["bounds"];
          if (std::isnan(value) ? !held[id].maybe_nan : !(held[id].low <= value && value <= held[id].high))
            return fail("bounds", "value " + std::to_string(id) + " is " + std::to_string(value));
        }
      }
    }
  }

  void blocks() {
    mask::Tiling t{pick64(1, positions), pick64(1, positions), pick(1, 16), pick(1, 16)};

    t.q_offset = pick64(0, 9), t.kv_offset = pick64(0, 9);
    const std::int64_t batch = pick64(0, 2), head = pick64(0, 3);
    std::vector<TensorView> tensors;
    for (std::size_t p = 0; p < make_.params().size(); ++p) tensors.push_back(data_.tensor(p));
    const scoring::DataReadRanges known(program_.params, tensors);
    const scoring::ReadRanges unknown;
    const scoring::ReadRanges* const both[] = {&known, &unknown};
    for (const scoring::ReadRanges* reads : both) {
      const mask::BlockMask found = mask::classify(program_.mask, t, batch, head, *reads);
      const mask::BlockMask turned = mask::transpose(found);
      for (std::int64_t q = 0; q < t.seqlen_q; ++q)
        for (std::int64_t kv = 0; kv < t.seqlen_kv; ++kv) {
          const Point point{.score = 0,
                            .batch = batch,
                            .head = head,
                            .q_idx = q + t.q_offset,
                            .kv_idx = kv + t.kv_offset,
                            .seqlen_q = t.seqlen_q,
                            .seqlen_kv = t.seqlen_kv};
          test::DualEvaluator direct(point, 0, reader(make_.params(), data_, {}));
          const bool kept = direct(mask_).value != 0 && direct(score_).value != -INFINITY;
          if (direct.divided_by_zero()) continue;
          ++counts["blocks"];
          for (const mask::BlockMask* blocks : {&found, &turned}) {
            const std::string state = state_of(*blocks, q / t.block_q, kv / t.block_kv);
            // What the score makes of a pair is no part of the mask: -inf may remain in a tile that is kept whole.
            if ((kept && state == "empty") || (!kept && direct(mask_).value == 0 && state == "full"))
              return fail("blocks", "a pair that is " + std::string(kept ? "kept" : "removed") + " lies in a tile that is " + state);
          }
        }
    }
  }

  static std::string state_of(const mask::BlockMask& blocks, std::int64_t row, std::int64_t column) {
    if (blocks.transposed) std::swap(row, column);
    for (auto i = blocks.row_begin[static_cast<std::size_t>(row)]; i < blocks.row_begin[static_cast<std::size_t>(row) + 1]; ++i) {
      const mask::Run& run = blocks.runs[static_cast<std::size_t>(i)];
      if (run.begin <= column && column < run.end) return run.full ? "full" : "partial";
    }
    return "empty";
  }

  /// A call as plain arrays [batch, position, head, dim].
  struct Call {
    std::int64_t batch, heads, group, q, kv;
    static constexpr std::int64_t dim = 4;
    double scale = 0.5;
    std::map<std::string, std::vector<double>> tensors;
    std::size_t at(std::int64_t b, std::int64_t position, std::int64_t count, std::int64_t h, std::int64_t of) const {
      return static_cast<std::size_t>(((b * count + position) * of + h) * dim);
    }
    std::vector<std::int64_t> shape(const std::string& name) const {
      const char kind = name.back();
      return {batch, kind == 'k' || kind == 'v' ? kv : q, kind == 'k' || kind == 'v' ? heads / group : heads, dim};
    }
  };

  /// 0 times infinity, as of sqrt(0 * score), is no number in the program and 0 for dual numbers.
  bool has_derivative(const Point& point) {
    if (program_.backward.empty()) return true;
    std::vector<scoring::Scalar> values(program_.backward.code.size());
    scoring::evaluate(program_.backward, point, data_, values.data());
    return std::isfinite(values[static_cast<std::size_t>(program_.dscore)].real) &&
           std::all_of(program_.reads.begin(), program_.reads.end(), [&](const scoring::TrainableRead& read) {
             return std::isfinite(values[static_cast<std::size_t>(read.factor)].real);
           });
  }

  /// Softmax and its derivative, written down; false where a value is not finite or too large to tell anything.
  bool compute(Call& c) {
    auto& t = c.tensors;
    for (const char* name : {"out", "dq", "dk", "dv"}) {
      std::size_t size = 1;
      for (const std::int64_t extent : c.shape(name)) size *= static_cast<std::size_t>(extent);
      t[name].assign(size, 0);
    }
    for (std::size_t p = 0; p < 3; ++p) {
      std::size_t size = 1;
      for (const std::int64_t extent : make_.params()[p].shape()) size *= static_cast<std::size_t>(extent);
      t["d" + make_.params()[p].name()].assign(size, 0);
    }
    const std::int64_t heads_kv = c.heads / c.group;
    struct Pair {
      Point point;
      double value, slope, weight;
      std::int64_t j;
    };
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t h = 0; h < c.heads; ++h)
        for (std::int64_t i = 0; i < c.q; ++i) {
          const std::size_t at_q = c.at(b, i, c.q, h, c.heads);
          std::vector<Pair> pairs;
          double largest = -INFINITY, sum = 0;
          for (std::int64_t j = 0; j < c.kv; ++j) {
            const std::size_t at_k = c.at(b, j, c.kv, h / c.group, heads_kv);
            double dot = 0;
            for (std::size_t d = 0; d < Call::dim; ++d) dot += t["q"][at_q + d] * t["k"][at_k + d];
            const Point point{.score = c.scale * dot, .batch = b, .head = h, .q_idx = i, .kv_idx = j, .seqlen_q = c.q, .seqlen_kv = c.kv};
            test::DualEvaluator direct(point, 1, reader(make_.params(), data_, {}));
            const bool kept = direct(mask_).value != 0;
            if (kept) {
              const auto [value, slope] = direct(score_);
              if (direct.divided_by_zero()) return false;
              if (value == -INFINITY) continue;
              if (!std::isfinite(value) || !std::isfinite(slope) || std::abs(value) > 1e6 || std::abs(slope) > 1e6) return false;
              if (!has_derivative(point)) return false;
              pairs.push_back({point, value, slope, 0, j});
              largest = std::max(largest, value);
            }
            if (direct.divided_by_zero()) return false;
          }
          for (Pair& pair : pairs) sum += pair.weight = std::exp(pair.value - largest);
          double delta = 0;
          for (Pair& pair : pairs) {
            pair.weight /= sum;
            const std::size_t at_v = c.at(b, pair.j, c.kv, h / c.group, heads_kv);
            for (std::size_t d = 0; d < Call::dim; ++d) {
              t["out"][at_q + d] += pair.weight * t["v"][at_v + d];
              delta += pair.weight * t["v"][at_v + d] * t["dout"][at_q + d];
            }
          }
          for (const Pair& pair : pairs) {
            const std::size_t at_k = c.at(b, pair.j, c.kv, h / c.group, heads_kv);
            double dweight = 0;
            for (std::size_t d = 0; d < Call::dim; ++d) {
              dweight += t["dout"][at_q + d] * t["v"][at_k + d];
              t["dv"][at_k + d] += pair.weight * t["dout"][at_q + d];
            }
            const double dvalue = pair.weight * (dweight - delta), dscore = dvalue * pair.slope * c.scale;
            for (std::size_t d = 0; d < Call::dim; ++d) {
              t["dq"][at_q + d] += dscore * t["k"][at_k + d];
              t["dk"][at_k + d] += dscore * t["q"][at_q + d];
            }
            std::vector<Place> seen;
            test::DualEvaluator(pair.point, 0, reader(make_.params(), data_, {}, &seen))(score_);
            std::sort(seen.begin(), seen.end());
            seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
            for (const Place& place : seen) {
              const double slope = test::DualEvaluator(pair.point, 0, reader(make_.params(), data_, place))(score_).derivative;
              if (!std::isfinite(slope) || std::abs(slope) > 1e6) return false;
              t["d" + place.first][place.second] += dvalue * slope;
            }
          }
        }
    return true;
  }

  void call() {
    Call c{.batch = pick64(1, 2), .heads = 4, .group = pick(0, 1) ? 1 : 2, .q = pick64(1, 9), .kv = pick64(1, 11), .tensors = {}};
    for (const char* name : {"q", "k", "v", "dout"}) {
      std::size_t size = 1;
      for (const std::int64_t extent : c.shape(name)) size *= static_cast<std::size_t>(extent);
      for (std::size_t i = 0; i < size; ++i) c.tensors[name].push_back(real(-1.5, 1.5));
    }
    Call nearby = c;
    for (double& x : nearby.tensors["q"]) x *= 1 + 1e-12;
    if (!compute(c) || !compute(nearby)) {
      ++counts["nothing to compare"];
      return;
    }
    std::map<std::string, double> bound;
    for (const auto& [name, values] : c.tensors) {
      double largest = 0, off = 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        largest = std::max(largest, std::abs(values[i])), off = std::max(off, std::abs(values[i] - nearby.tensors[name][i]));
      bound[name] = 1e-9 * (1 + largest) + 1e3 * off;
      if (1e3 * off > 1e-4 * (1 + largest)) {  // a jump, or too steep
        ++counts["nothing to compare"];
        return;
      }
    }
    Attention attention;
    attention.score_mod = score_, attention.mask = mask_, attention.scale = c.scale;
    for (const TargetInfo& target : targets()) {
      if (!target.available || target.backend == "cuda") continue;
      std::map<std::string, std::vector<double>> found;
      const auto view = [&](const std::string& name) {
        std::vector<double>& values = c.tensors.contains(name) && name[0] != 'd' && name != "out" ? c.tensors[name] : found[name];
        if (name == "dout") return contiguous(c.tensors[name].data(), DType::f64, c.shape("q"));
        if (values.empty()) values.assign(c.tensors[name].size(), NAN);
        return contiguous(values.data(), DType::f64, c.shape(name));
      };
      std::vector<double> lse(static_cast<std::size_t>(c.batch * c.heads * c.q));
      ForwardInputs in;
      in.q = view("q"), in.k = view("k"), in.v = view("v");
      ForwardOutputs out{.out = view("out"), .lse = contiguous(lse.data(), DType::f64, {c.batch, c.heads, c.q})};
      BackwardInputs back_in;
      back_in.q = in.q, back_in.k = in.k, back_in.v = in.v, back_in.out = out.out, back_in.lse = out.lse, back_in.dout = view("dout");
      BackwardOutputs back_out{.dq = view("dq"), .dk = view("dk"), .dv = view("dv"), .dparams = {}};
      for (std::size_t p = 0; p < make_.params().size(); ++p) {
        const Param& param = make_.params()[p];
        in.params.push_back({param, data_.tensor(p)}), back_in.params.push_back({param, data_.tensor(p)});
        if (param.type() != Type::real || !reads(score_, param.name() + "[")) continue;
        std::vector<double>& gradient = found["d" + param.name()];
        gradient.assign(c.tensors["d" + param.name()].size(), NAN);
        back_out.dparams.push_back({param, contiguous(gradient.data(), DType::f64, param.shape())});
      }
      const PlanOptions options{.backend = target.backend, .target = target.target, .threads = 1};
      const std::string where = target.backend + " " + target.target + ": ";
      try {
        forward(attention, in, out, {}, options);
        backward(attention, back_in, back_out, {}, options);
      } catch (const Error& error) {
        const std::string what = error.what();
        if (what.find("outside at every pair") == std::string::npos) return fail("call", where + what);
        ++counts["refused"];
        return;
      }
      for (const auto& [name, values] : found) {
        ++counts["call"];
        for (std::size_t i = 0; i < values.size(); ++i)
          if (!(std::abs(values[i] - c.tensors[name][i]) <= bound[name]))
            return fail("call", where + name + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) + ", should be " +
                                    std::to_string(c.tensors[name][i]));
      }
    }
  }

  std::mt19937_64 random_;
  test::RandomExpr make_;
  Data data_;
  Expr score_, mask_;
  scoring::ScoreProgram program_;
  std::string text_;
  std::vector<Finding> findings_;
};

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

int main(int argc, char** argv) {
  const foveal::fuzz::Arguments given(argc, argv);
  const std::uint64_t first = given.first_seed();
  const double seconds = given.limit(10);
  const auto begin = std::chrono::steady_clock::now();
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = 1; });
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::map<std::string, long> counts;
  std::uint64_t seed = first;
  long findings = 0;
  for (; !interrupted && elapsed() < seconds; ++seed) {
    Fuzzer fuzzer(seed);
    fuzzer.run();
    for (const auto& [name, count] : fuzzer.counts) counts[name] += count;
    for (const Finding& found : fuzzer.findings()) {
      ++findings;
      std::fprintf(stderr, "seed %llu: %s: %s\n  %s\n", static_cast<unsigned long long>(seed), found.check.c_str(), found.what.c_str(),
                   fuzzer.text().c_str());
    }
  }
  std::ofstream file;
  if (!given.file().empty()) file.open(given.file());
  std::ostream& out = given.file().empty() ? std::cout : file;
  out << "{\"first_seed\": " << first << ", \"programs\": " << seed - first << ", \"seconds\": " << std::lround(elapsed())
      << ", \"findings\": " << findings << ", \"compared\": {";
  const char* separator = "";
  for (const auto& [name, count] : counts) out << std::exchange(separator, ", ") << '"' << name << "\": " << count;
  out << "}}\n";
  return findings == 0 ? 0 : 1;
}
