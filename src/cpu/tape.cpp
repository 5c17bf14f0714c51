#include "cpu/tape.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/divide.h"
#include "base/dtype.h"
#include "base/lru_cache.h"
#include "cpu/integer_widths.h"
#include "cpu/tape_compile.h"
#include "problem/outside.h"
#include "score/evaluate.h"

namespace foveal::cpu {
namespace {

const TapeKernels& kernels_of(const std::string& target) {
#if defined(__x86_64__)
  if (target == "avx2") return targets::tape_avx2;
  if (target != "scalar") return targets::tape_avx512;
#endif
  (void)target;
  return targets::tape_scalar;
}

TapeCall call_of(const TileFrame& frame, const TapeData& data, const void* input, void* output, void* scratch) {
  TapeCall call{};
  call.frame = &frame, call.data = &data;
  call.input = input, call.output = output;
  call.scratch = static_cast<char*>(scratch);
  return call;
}

TapeLayout layout_of(const problem::ParamSpec& spec) {
  const auto rank = static_cast<std::size_t>(spec.tensor.rank);
  return {{spec.tensor.sizes.begin(), spec.tensor.sizes.begin() + rank}, {spec.tensor.strides.begin(), spec.tensor.strides.begin() + rank}};
}

/// Reads bound parameters one element at a time; records the first index out of range.
class OutsideReader : public scoring::ParamReader {
 public:
  OutsideReader(const TapeData& data, const std::vector<TapeLayout>& layouts, const scoring::ScoreProgram& score)
      : data_(data), layouts_(layouts), score_(score) {}

  double read(std::int32_t param, const std::int64_t* index) const override {
    return base::load(data_.params[param].data, data_.params[param].dtype, offset(param, index));
  }
  std::int64_t read_integer(std::int32_t param, const std::int64_t* index) const override {
    return base::load_integer(data_.params[param].data, data_.params[param].dtype, offset(param, index));
  }

  mutable std::optional<problem::Outside> outside;  ///< without its position

 private:
  std::int64_t offset(std::int32_t param, const std::int64_t* index) const {
    const TapeLayout& layout = layouts_[static_cast<std::size_t>(param)];
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < layout.sizes.size(); ++d) {
      if (!outside && (index[d] < 0 || index[d] >= layout.sizes[d]))
        outside = problem::Outside{
            score_.params[static_cast<std::size_t>(param)].name, index[d], static_cast<std::int64_t>(d), layout.sizes[d] - 1, 0, 0, 0, 0};
      offset += std::clamp<std::int64_t>(index[d], 0, layout.sizes[d] - 1) * layout.strides[d];
    }
    return offset;
  }

  const TapeData& data_;
  const std::vector<TapeLayout>& layouts_;
  const scoring::ScoreProgram& score_;
};

}  // namespace

struct Tape::Prepared {
  explicit Prepared(const problem::Problem& problem) : widths(problem) {}

  /// One program for lanes of one head with consecutive queries, and one for any lanes.
  struct Pair {
    CompiledTape one_head, mixed;
    const CompiledTape& operator()(bool is_one_head) const { return is_one_head ? one_head : mixed; }
  };

  std::shared_ptr<const scoring::ScoreProgram> score;
  double scale;
  bool f64;
  const TapeKernels* kernels;
  std::vector<TapeLayout> layouts;
  std::vector<DType> dtypes;
  /// All programs, with 32-bit integers or with wider ones too.
  struct Programs {
    Pair full, partial, backward;
    std::optional<CompiledTape> ranges;
    bool reads_dots = false;  ///< the backward does
  };
  IntegerWidths widths;
  std::shared_ptr<const Programs> narrow;
  Programs wide;

  const Programs& programs(const TapeData& data) const { return data.wide ? wide : *narrow; }

  /// Programs with 32-bit integers do not depend on lengths: plans of other lengths share them.
  std::shared_ptr<const Programs> narrow_once() const {
    struct Compiled {
      std::shared_ptr<const scoring::ScoreProgram> score;  // kept alive: the key holds its address
      Programs programs;
    };
    static auto& latest = *new base::LruCache<Compiled>(256);  // never destroyed: destructors of static objects may make calls
    std::string key;
    const auto add = [&key](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
    add(reinterpret_cast<std::uintptr_t>(score.get())), add(scale), add(f64);
    for (const TapeLayout& layout : layouts)
      for (const auto* numbers : {&layout.sizes, &layout.strides})
        for (const std::int64_t number : *numbers) add(number);
    const auto found = latest.find_or_make(key, [&] { return Compiled{score, compile(nullptr)}; });
    return {found, &found->programs};
  }

  Programs compile(const IntegerWidths* of_integers) const {
    Programs programs;
    const auto source = [&](bool one_head) { return TapeSource{score.get(), scale, f64, layouts, one_head, of_integers}; };
    if (!score->forward.empty()) programs.full = {compile_forward(source(true), false), compile_forward(source(false), false)};
    if (!score->mask.empty()) programs.partial = {compile_forward(source(true), true), compile_forward(source(false), true)};
    if (!score->backward.empty())
      programs.backward = {compile_backward(source(true), programs.reads_dots), compile_backward(source(false), programs.reads_dots)};
    programs.ranges = compile_ranges(source(false));
    return programs;
  }

  /// Runs a program over all lanes of a frame, in pieces of 16 lanes or more that share a head and have consecutive queries. `call` is not
  /// copied: a copy would wait for the stores of its fields.
  void run(const Pair& pair, TapeCall& call) const {
    const auto run_kernel = f64 ? kernels->run_f64 : kernels->run_f32;
    const TileFrame& frame = *call.frame;
    const int padded = frame.padded();
    const auto run_piece = [&](bool one_head, int first, int last) {
      call.program = &pair(one_head).program;
      call.first_lane = first;
      call.lanes = last - first;
      call.valid_lanes = std::min(last, frame.lanes) - first;
      run_kernel(call);
    };
    // Pieces start at multiples of 16; if one would start elsewhere, the whole tile runs the program for any lanes.
    std::int32_t breaks = 0;
    for (int start = 0; start < frame.lanes; start += TileFrame::lane_multiple) {
      const std::int32_t head = frame.head[start], q = frame.q_idx[start] - start;
      const int end = std::min(start + TileFrame::lane_multiple, frame.lanes);
      for (int lane = start; lane < end; ++lane) breaks |= (frame.head[lane] ^ head) | ((frame.q_idx[lane] - lane) ^ q);
    }
    if (breaks) return run_piece(false, 0, padded);
    int first = 0;
    for (int lane = TileFrame::lane_multiple; lane < frame.lanes; lane += TileFrame::lane_multiple) {
      if (continues(frame, lane)) continue;
      run_piece(true, first, lane);
      first = lane;
    }
    run_piece(true, first, padded);
  }

  static bool continues(const TileFrame& frame, int lane) {
    return frame.head[lane] == frame.head[lane - 1] && frame.q_idx[lane] == frame.q_idx[lane - 1] + 1;
  }
};

Tape::~Tape() = default;
Tape::Tape(Tape&&) noexcept = default;

const std::vector<Varies>& Tape::sums_of_reads(bool one_head) const { return prepared_->narrow->backward(one_head).sums; }

std::optional<std::string> Tape::refuses(const problem::Problem& problem) {
  if (problem.params.size() > TapeGrads::max_params)
    return base::join(problem.params.size(), " parameters; this backend takes at most ", TapeGrads::max_params);
  for (const problem::ParamSpec& spec : problem.params)
    for (int d = 0; d < spec.tensor.rank; ++d)
      if (spec.tensor.sizes[static_cast<std::size_t>(d)] > std::numeric_limits<std::int32_t>::max())
        return base::join("parameter ", spec.param.name(), " has ", spec.tensor.sizes[static_cast<std::size_t>(d)],
                          " elements in one dimension; indices here have 31 bits");
  return std::nullopt;
}

Tape::Tape(const problem::Problem& problem, const std::string& target) : prepared_(std::make_unique<Prepared>(problem)) {
  Prepared& p = *prepared_;
  p.score = problem.score;
  p.scale = problem.scale;
  p.f64 = problem.dtype == DType::f64;
  p.kernels = &kernels_of(target);
  for (const problem::ParamSpec& spec : problem.params) {
    p.layouts.push_back(layout_of(spec));
    p.dtypes.push_back(spec.tensor.dtype);
  }
  has_score_ = !p.score->forward.empty();
  has_mask_ = !p.score->mask.empty();
  p.narrow = p.narrow_once();
  backward_needs_dots_ = p.narrow->reads_dots;
  mask_is_ranges_ = p.narrow->ranges.has_value();
  if (p.widths.undecided()) {
    p.wide = p.compile(&p.widths);
    backward_needs_dots_ |= p.wide.reads_dots;
    mask_is_ranges_ = mask_is_ranges_ && p.wide.ranges.has_value();
  }
  has_backward_ = !p.score->backward.empty() && p.narrow->backward.mixed.program.count > 0;
}

std::size_t Tape::scratch_bytes(int max_keys, int max_ld) const {
  std::size_t most = 0;
  const auto add = [&](const CompiledTape& tape) {
    const TapeProgram& t = tape.program;
    TapeSlots slots = tape_slots(max_keys, max_ld, t.strip_element);
    // Strips of a narrow piece have more rows.
    slots.bytes[slot_space(Space::key_broadcast)] = tape_slots(max_keys, TileFrame::lane_multiple, 8)[Space::key_broadcast];
    std::size_t& strip = slots.bytes[slot_space(Space::strip)];
    strip = std::max<std::size_t>(strip, static_cast<std::size_t>(tape_strip_elements) * static_cast<std::size_t>(t.strip_element));
    most = std::max(most, std::inner_product(slots.bytes, slots.bytes + slot_spaces, t.slots, std::size_t{0}));
  };
  for (const Prepared::Programs* programs : {prepared_->narrow.get(), &std::as_const(prepared_->wide)}) {
    for (const Prepared::Pair* pair : {&programs->full, &programs->partial, &programs->backward}) {
      add(pair->one_head);
      add(pair->mixed);
    }
    if (programs->ranges) add(*programs->ranges);
  }
  return base::round_up(most, std::size_t{64});
}

std::size_t Tape::data_bytes() const {
  return base::round_up(prepared_->layouts.size() * sizeof(TapeParam) + prepared_->widths.bytes(), std::size_t{64});
}

TapeData Tape::bind(const std::vector<TensorView>& params, void* memory) const {
  auto* bound = static_cast<TapeParam*>(memory);
  for (std::size_t i = 0; i < prepared_->layouts.size(); ++i) bound[i] = {params[i].data, prepared_->dtypes[i]};
  return {bound, prepared_->widths(params, bound + prepared_->layouts.size())};
}

template <class Real>
void Tape::apply(const TileFrame& frame, const TapeData& data, const Real* dots, Real* scores, bool partial, Real* lane_max,
                 void* scratch) const {
  TapeCall call = call_of(frame, data, dots, scores, scratch);
  call.lane_max = lane_max;
  const Prepared::Programs& programs = prepared_->programs(data);
  prepared_->run(partial && has_mask_ ? programs.partial : programs.full, call);
}
template void Tape::apply(const TileFrame&, const TapeData&, const float*, float*, bool, float*, void*) const;
template void Tape::apply(const TileFrame&, const TapeData&, const double*, double*, bool, double*, void*) const;

template <class Real>
void Tape::differentiate(const TileFrame& frame, const TapeData& data, const Real* dots, Real* ds, const TapeGrads* grads,
                         void* scratch) const {
  TapeCall call = call_of(frame, data, dots, ds, scratch);
  call.grads = grads;
  prepared_->run(prepared_->programs(data).backward, call);
}
template void Tape::differentiate(const TileFrame&, const TapeData&, const float*, float*, const TapeGrads*, void*) const;
template void Tape::differentiate(const TileFrame&, const TapeData&, const double*, double*, const TapeGrads*, void*) const;

void Tape::lane_ranges(const TileFrame& frame, const TapeData& data, std::int32_t* first, std::int32_t* last, void* scratch) const {
  const CompiledTape& tape = *prepared_->programs(data).ranges;
  TapeCall call = call_of(frame, data, nullptr, nullptr, scratch);
  call.program = &tape.program;
  call.lanes = frame.padded();
  call.valid_lanes = frame.lanes;
  (prepared_->f64 ? prepared_->kernels->run_f64 : prepared_->kernels->run_f32)(call);

  const TapeSlots slots = tape_slots(frame.keys, frame.padded(), tape.program.strip_element);
  const char* lanes = call.scratch + slots[Space::uniform] * static_cast<std::size_t>(tape.program.slots[slot_space(Space::uniform)]);
  const auto local = [&](TapeOperand operand, std::int32_t* out) {
    const auto* global = reinterpret_cast<const std::int32_t*>(lanes + slots[Space::lane] * static_cast<std::size_t>(operand.slot));
    for (int i = 0; i < frame.padded(); ++i) out[i] = std::clamp(global[i], frame.kv_idx, frame.kv_idx + frame.keys) - frame.kv_idx;
  };
  local(tape.first, first);
  local(tape.last, last);
}

template <class Real>
std::optional<problem::Outside> Tape::find_outside(const TileFrame& frame, const TapeData& data, const Real* dots) const {
  const scoring::ScoreProgram& score = *prepared_->score;
  const OutsideReader reader(data, prepared_->layouts, score);
  std::vector<scoring::Scalar> values(std::max(score.mask.code.size(), score.forward.code.size()));
  for (int row = 0; row < frame.keys; ++row) {
    for (int lane = 0; lane < frame.lanes; ++lane) {
      scoring::Point point;
      if (dots) point.score = static_cast<double>(dots[static_cast<std::ptrdiff_t>(row) * frame.ld + lane]) * prepared_->scale;
      point.batch = frame.batch;
      point.head = frame.head[lane];
      point.q_idx = frame.q_idx[lane];
      point.kv_idx = frame.kv_idx + row;
      point.seqlen_q = frame.seqlen_q;
      point.seqlen_kv = frame.seqlen_kv;
      reader.outside.reset();
      if (has_mask_ && scoring::evaluate(score.mask, point, reader, values.data()) == 0) continue;
      if (has_score_) scoring::evaluate(score.forward, point, reader, values.data());
      if (!reader.outside) continue;
      problem::Outside outside = *reader.outside;
      outside.batch = frame.batch;
      outside.head = frame.head[lane];
      outside.q_idx = frame.q_idx[lane];
      outside.kv_idx = frame.kv_idx + row;
      return outside;
    }
  }
  return std::nullopt;
}
template std::optional<problem::Outside> Tape::find_outside(const TileFrame&, const TapeData&, const float*) const;
template std::optional<problem::Outside> Tape::find_outside(const TileFrame&, const TapeData&, const double*) const;

std::string Tape::text() const {
  std::string text;
  const auto add = [&](const char* title, const CompiledTape& tape) { text += std::string(title) + ":\n" + tape.text(); };
  if (has_score_) add("score", prepared_->narrow->full.one_head);
  if (has_mask_) add("masked score", prepared_->narrow->partial.one_head);
  if (has_backward_) add("backward", prepared_->narrow->backward.one_head);
  if (mask_is_ranges_) add("ranges", *prepared_->narrow->ranges);
  return text;
}

template <class Real>
void apply_dropout(const std::string& target, const TileFrame& frame, const TileDropout& dropout, Real* tile, Real* second) {
  const TapeKernels& kernels = kernels_of(target);
  if constexpr (sizeof(Real) == 8)
    kernels.dropout_f64(frame, dropout, tile, second);
  else
    kernels.dropout_f32(frame, dropout, tile, second);
}
template void apply_dropout(const std::string&, const TileFrame&, const TileDropout&, float*, float*);
template void apply_dropout(const std::string&, const TileFrame&, const TileDropout&, double*, double*);

}  // namespace foveal::cpu
