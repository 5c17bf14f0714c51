#include "problem/case_data.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/divide.h"
#include "base/dtype.h"
#include "base/random.h"
#include "base/strided.h"
#include "problem/call.h"

namespace foveal::problem {
namespace {

using Pair = std::pair<std::int64_t, std::int64_t>;

constexpr std::size_t margin_bytes = 256;
constexpr std::byte untouched{0xFF};

/// Lowest and highest offset of an element from the first.
std::pair<std::int64_t, std::int64_t> extent(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  std::int64_t low = 0, high = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const std::int64_t reach = (sizes[d] - 1) * strides[d];
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

std::size_t memory_of_machine() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

void fill_with(const TensorView& view, const std::function<double(std::int64_t)>& value) {
  base::each_element(view, [&](std::int64_t i, std::int64_t offset) { base::store(view.data, view.dtype, offset, value(i)); });
}

void fill_normal(const TensorView& view, base::Random& random, double deviation = 1) {
  fill_with(view, [&](std::int64_t) { return deviation * random.normal(); });
}

/// Rows of every odd token become those of the token before it, times `factor`, plus noise.
void repeat_tokens(const TensorView& view, base::Random& random, double factor, double noise) {
  for (std::int64_t b = 0; b < view.sizes[0]; ++b)
    for (std::int64_t s = 1; s < view.sizes[1]; s += 2)
      for (std::int64_t h = 0; h < view.sizes[2]; ++h)
        for (std::int64_t d = 0; d < view.sizes[3]; ++d) {
          const std::int64_t before = b * view.strides[0] + (s - 1) * view.strides[1] + h * view.strides[2] + d * view.strides[3];
          const double value = factor * base::load(view.data, view.dtype, before) + noise * random.normal();
          base::store(view.data, view.dtype, before + view.strides[1], value);
        }
}

/// Ids 0 .. n-1, nondecreasing along the last dimension, with random borders.
void fill_segments(const TensorView& view, base::Random& random, std::int64_t n) {
  const std::int64_t length = view.rank == 0 ? 1 : view.sizes[static_cast<std::size_t>(view.rank - 1)];
  std::vector<std::int64_t> borders;
  fill_with(view, [&](std::int64_t i) {
    const std::int64_t at = i % length;
    if (at == 0) {
      borders.clear();
      for (std::int64_t b = 1; b < n; ++b) borders.push_back(random.integer(1, std::max<std::int64_t>(1, length - 1)));
    }
    return static_cast<double>(std::count_if(borders.begin(), borders.end(), [at](std::int64_t border) { return border <= at; }));
  });
}

void fill_param(const ParamLine& line, const TensorView& view, base::Random& random) {
  ParamFill fill = line.fill;
  const Type type = line.param.type();
  if (fill.name.empty())
    fill = type == Type::real      ? ParamFill{"normal", {0.5}}
           : type == Type::integer ? ParamFill{"integers", {0, 3}}
                                   : ParamFill{"bernoulli", {0.5}};
  const auto& args = fill.args;
  if (fill.name == "normal") fill_normal(view, random, args[0]);
  if (fill.name == "uniform") fill_with(view, [&](std::int64_t) { return random.uniform(args[0], args[1]); });
  if (fill.name == "integers")
    fill_with(view, [&](std::int64_t) {
      return static_cast<double>(random.integer(static_cast<std::int64_t>(args[0]), static_cast<std::int64_t>(args[1])));
    });
  if (fill.name == "bernoulli") fill_with(view, [&](std::int64_t) { return random.chance(args[0]) ? 1.0 : 0.0; });
  if (fill.name == "constant") fill_with(view, [&](std::int64_t) { return args[0]; });
  if (fill.name == "arange") fill_with(view, [](std::int64_t i) { return static_cast<double>(i); });
  if (fill.name == "segments") fill_segments(view, random, static_cast<std::int64_t>(args[0]));
}

}  // namespace

std::vector<double> values_of(const TensorView& view) {
  std::vector<double> values(static_cast<std::size_t>(view.numel()));
  base::each_element(
      view, [&](std::int64_t i, std::int64_t offset) { values[static_cast<std::size_t>(i)] = base::load(view.data, view.dtype, offset); });
  return values;
}

void set_values(const TensorView& view, const std::vector<double>& values) {
  FOVEAL_CHECK(static_cast<std::int64_t>(values.size()) == view.numel(), "values: ", values.size(), "; expected ", view.numel());
  fill_with(view, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

CaseData::CaseData(Line line) : CaseData(std::move(line), nullptr) {}

CaseData::CaseData(Line line, const CaseData* source) : line_(std::move(line)) {
  allocate_tensors();
  if (source == nullptr) {
    fill();
  } else {
    copy_values(*source);
  }
}

TensorView CaseData::place(const Block& block, std::int64_t first, DType dtype, const std::vector<std::int64_t>& sizes,
                           const std::vector<std::int64_t>& strides) const {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), view.sizes.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  view.data = block.bytes.get() + margin_bytes + static_cast<std::size_t>(first) * size_of(dtype);
  return view;
}

std::size_t CaseData::total_bytes() const {
  return std::accumulate(blocks_.begin(), blocks_.end(), std::size_t{0},
                         [](std::size_t sum, const auto& named) { return sum + named.second.size; });
}

TensorView CaseData::allocate(const std::string& name, DType dtype, const std::vector<std::int64_t>& sizes,
                              const std::vector<std::int64_t>& strides) {
  for (const std::int64_t size : sizes) FOVEAL_CHECK(size >= 1, "problem line: ", name, ": a size is ", size, "; expected at least 1");
  const auto [low, high] = extent(sizes, strides);
  Block block;
  block.size = static_cast<std::size_t>(high - low + 1) * size_of(dtype) + 2 * margin_bytes;
  // All of it is written below: a system that promises more than it has would end the process.
  const bool fits = block.size <= memory_of_machine() - std::min(memory_of_machine(), total_bytes());
  void* const memory = fits ? std::aligned_alloc(margin_bytes, base::round_up(block.size, margin_bytes)) : nullptr;
  if (memory == nullptr)
    throw NoMemory(base::join("problem line: ", name, ": cannot allocate ", block.size, " bytes beside ", total_bytes(),
                              " of other tensors; expected a problem that fits the ", memory_of_machine(), " bytes of this machine"));
  auto* const bytes = static_cast<std::byte*>(memory);
  block.bytes = std::shared_ptr<std::byte[]>(bytes, [](std::byte* memory) { std::free(memory); });
  std::memset(bytes, 0xFF, block.size);
  blocks_.emplace_back(name, block);
  return place(block, -low, dtype, sizes, strides);
}

const TensorView& CaseData::allocate_role(const std::string& role) {
  return views_[role] = allocate(role, role_dtype(line_, role_named(role)), role_sizes(line_, role), layout_strides(line_, role));
}

void CaseData::allocate_packed(const char* q, const char* k, const char* v) {
  FOVEAL_CHECK(!line_.paged(), "problem line: layout=packed_qkv with keys in pages; expected another layout");
  FOVEAL_CHECK(role_sizes(line_, "q")[1] == role_sizes(line_, "k")[1], "problem line: layout=packed_qkv needs equal lengths of q and kv");
  const std::vector<std::int64_t> strides = layout_strides(line_, q);
  const std::int64_t tokens = role_sizes(line_, "q")[0] * role_sizes(line_, "q")[1];
  allocate(std::string(q) + k + v, line_.dtype, {tokens, strides[1]}, {strides[1], 1});
  const Block& block = blocks_.back().second;
  std::int64_t first = 0;
  for (const char* role : {q, k, v}) {
    const std::vector<std::int64_t> sizes = role_sizes(line_, role);
    views_[role] = place(block, first, line_.dtype, sizes, layout_strides(line_, role));
    first += sizes[2] * sizes[3];
  }
}

void CaseData::fill_lengths() {
  if (!line_.varlen) return;
  FOVEAL_CHECK(has_lengths(), "problem line: a packed batch without lengths");
  const auto fill = [&](const char* role, std::int64_t Pair::*side) {
    const TensorView& cu = allocate_role(role);
    std::int64_t total = 0;
    fill_with(cu, [&](std::int64_t i) {
      return static_cast<double>(i == 0 ? 0 : total += line_.lengths[static_cast<std::size_t>(i - 1)].*side);
    });
  };
  fill("cu_seqlens_q", &Pair::first);
  if (!line_.paged()) fill("cu_seqlens_kv", &Pair::second);
}

/// Pages in random order, shared if there are too few. Entries that no key needs are invalid.
void CaseData::fill_table() {
  if (!line_.paged()) return;
  FOVEAL_CHECK(has_lengths(), "problem line: keys in pages without lengths");
  const auto length = [this](std::int64_t b) { return line_.lengths[static_cast<std::size_t>(b)].second; };
  fill_with(allocate_role("seqlens_kv"), [&](std::int64_t b) { return static_cast<double>(length(b)); });
  base::Random random(line_.seed + 2);
  std::vector<std::int32_t> free;
  fill_with(allocate_role("block_table"), [&](std::int64_t i) {
    if (i % line_.table_pages() * line_.page_size >= length(i / line_.table_pages())) return -1.0;
    if (free.empty()) {
      free.resize(static_cast<std::size_t>(line_.pages));
      std::iota(free.begin(), free.end(), 0);
    }
    const auto at = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(free.size()) - 1));
    std::swap(free[at], free.back());
    const std::int32_t page = free.back();
    free.pop_back();
    return static_cast<double>(page);
  });
}

std::int64_t CaseData::pool_row(std::int64_t sequence, std::int64_t key) const {
  const auto* table = static_cast<const std::int32_t*>(views_.at("block_table").data);
  return table[sequence * line_.table_pages() + key / line_.page_size] * line_.page_size + key % line_.page_size;
}

void CaseData::set_pages(const std::vector<double>& block_table, const std::vector<double>& seqlens_kv) {
  set_values(views_["block_table"], block_table);
  set_values(views_["seqlens_kv"], seqlens_kv);
  for (std::size_t b = 0; b < seqlens_kv.size(); ++b) line_.lengths[b].second = static_cast<std::int64_t>(seqlens_kv[b]);
}

void CaseData::allocate_rng_state() {
  if (!line_.rng_in_memory) return;
  rng_state_ = allocate("rng_state", DType::i64, {2}, {1});
  const std::array<std::uint64_t, 2> words{line_.rng.seed, line_.rng.offset};
  std::memcpy(rng_state_.data, words.data(), sizeof words);
}

void CaseData::allocate_tensors() {
  const bool backward = line_.pass == Pass::backward;
  const auto allocate_three = [this](const char* q, const char* k, const char* v) {
    if (line_.layout == Layout::packed_qkv) return allocate_packed(q, k, v);
    for (const char* role : {q, k, v}) allocate_role(role);
  };
  allocate_three("q", "k", "v");
  allocate_role("out");
  if (line_.lse || backward) allocate_role("lse");
  if (backward) {
    allocate_role("dout");
    if (line_.dlse) allocate_role("dlse");
    allocate_three("dq", "dk", "dv");
    if (!line_.dq) views_.erase("dq");
    if (!line_.dk) views_.erase("dk");
    if (!line_.dv) views_.erase("dv");
  }
  for (const ParamLine& param : line_.params) {
    const std::vector<std::int64_t>& shape = param.param.shape();
    params_.push_back(allocate(param.param.name(), param.dtype, shape, row_major_strides(shape)));
    const bool has_gradient = backward && param.grad;
    dparams_.push_back(has_gradient ? allocate("d" + param.param.name(), param.grad_dtype, shape, row_major_strides(shape)) : TensorView{});
  }
  fill_lengths();
  fill_table();
  allocate_rng_state();
}

void CaseData::fill() {
  base::Random random(line_.seed);
  const bool adversarial = line_.fill == Fill::adversarial;
  fill_normal(views_["q"], random, adversarial ? 4 : 1);
  fill_normal(views_["k"], random, adversarial ? 4 : 1);
  fill_normal(views_["v"], random);
  if (adversarial) {
    repeat_tokens(views_["k"], random, 1, 0);        // equal scores ...
    repeat_tokens(views_["v"], random, -1, 0x1p-6);  // ... of values that cancel
  }
  if (views_.contains("dout")) fill_normal(views_["dout"], random);
  if (views_.contains("dlse")) fill_normal(views_["dlse"], random);
  for (std::size_t i = 0; i < params_.size(); ++i) fill_param(line_.params[i], params_[i], random);
  clear_unsampled();
  spoil_unheld();
}

/// NaN in the rows of pages that hold no key, so that reading them shows.
void CaseData::spoil_unheld() {
  if (!line_.paged()) return;
  std::vector<bool> held(static_cast<std::size_t>(line_.pages * line_.page_size), false);
  for (std::size_t b = 0; b < line_.lengths.size(); ++b)
    for (std::int64_t key = 0; key < line_.lengths[b].second; ++key)
      held[static_cast<std::size_t>(pool_row(static_cast<std::int64_t>(b), key))] = true;
  for (const char* role : {"k", "v"}) {
    const TensorView& view = views_[role];
    const std::int64_t row = view.sizes[2] * view.sizes[3];
    base::each_element(view, [&](std::int64_t i, std::int64_t offset) {
      if (!held[static_cast<std::size_t>(i / row)]) base::store(view.data, view.dtype, offset, std::numeric_limits<double>::quiet_NaN());
    });
  }
}

/// Only sampled queries have gradients of out and lse.
void CaseData::clear_unsampled() {
  const std::vector<bool> sampled = sampled_queries(line_);
  if (sampled.empty()) return;
  for (const auto& [role, queries] : {std::pair{"dout", std::size_t{1}}, {"dlse", std::size_t{2}}}) {  // the dimension of the queries
    if (!views_.contains(role)) continue;
    const TensorView& view = views_[role];
    std::int64_t inner = 1;
    for (std::size_t d = queries + 1; d < static_cast<std::size_t>(view.rank); ++d) inner *= view.sizes[d];
    base::each_element(view, [&, &queries = queries](std::int64_t i, std::int64_t offset) {
      if (!sampled[static_cast<std::size_t>(i / inner % view.sizes[queries])]) base::store(view.data, view.dtype, offset, 0);
    });
  }
}

void CaseData::copy_values(const CaseData& source) {
  for (const char* role : {"q", "k", "v", "dout", "dlse"})
    if (views_.contains(role)) set_values(views_[role], values_of(source.views_.at(role)));
  for (std::size_t i = 0; i < params_.size(); ++i) set_values(params_[i], values_of(source.params_[i]));
  if (line_.paged()) set_pages(values_of(source.views_.at("block_table")), values_of(source.views_.at("seqlens_kv")));
}

CaseData CaseData::as_f64() const {
  Line line = line_;
  line.dtype = DType::f64;
  line.layout = Layout::bshd;
  line.strides.clear();
  for (ParamLine& param : line.params) {
    if (param.param.type() == Type::real) param.dtype = DType::f64;
    param.grad_dtype = DType::f64;
  }
  return CaseData(std::move(line), this);
}

TensorView CaseData::view(const std::string& role) const {
  const auto found = views_.find(role);
  return found == views_.end() ? TensorView{} : public_view(line_, role_named(role), found->second);
}

/// make(call, rest): the public arguments of a pass from the tensors by role.
template <class Make>
auto CaseData::arguments(Pass pass, Make make) const {
  std::array<TensorView, role_table::all.size()> views;
  Call call{.pass = pass};
  for (std::size_t i = 0; i < roles.size(); ++i) {
    if (roles[i].use(pass) == Use::none) continue;
    views[i] = view(roles[i].name);
    call.*roles[i].given = &views[i];
  }
  CallRest rest;
  if (line_.varlen) rest.max_seqlen_q = line_.seqlen_q, rest.max_seqlen_kv = line_.seqlen_kv;
  rest.rng = rng_state_.present() ? DropoutRng{.state = rng_state_} : line_.rng;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    rest.params.push_back({line_.params[i].param, params_[i]});
    if (dparams_[i].present() && pass == Pass::backward) rest.dparams.push_back({line_.params[i].param, dparams_[i]});
  }
  return make(call, std::move(rest));
}

ForwardInputs CaseData::forward_inputs() const {
  return arguments(Pass::forward, [](const Call& call, CallRest&& rest) { return problem::forward_inputs(call, std::move(rest)); });
}

ForwardOutputs CaseData::forward_outputs() const { return {.out = view("out"), .lse = view("lse")}; }

BackwardInputs CaseData::backward_inputs() const {
  return arguments(Pass::backward, [](const Call& call, CallRest&& rest) { return problem::backward_inputs(call, std::move(rest)); });
}

BackwardOutputs CaseData::backward_outputs() const {
  return arguments(Pass::backward,
                   [](const Call& call, CallRest&& rest) { return problem::backward_outputs(call, std::move(rest.dparams)); });
}

void CaseData::clear_outputs(Pass pass) {
  const auto clear = [](const TensorView& view) {
    const auto width = static_cast<std::int64_t>(size_of(view.dtype));
    base::each_element(view, [&](std::int64_t, std::int64_t offset) {
      std::memset(static_cast<char*>(view.data) + offset * width, 0xFF, static_cast<std::size_t>(width));
    });
  };
  for (const char* role : pass == Pass::forward ? std::vector<const char*>{"out", "lse"} : std::vector<const char*>{"dq", "dk", "dv"})
    if (views_.contains(role)) clear(views_[role]);
  if (pass == Pass::backward)
    for (std::size_t i = 0; i < dparams_.size(); ++i)
      if (dparams_[i].data != nullptr) clear(dparams_[i]);
}

std::string CaseData::damage() const {
  std::vector<TensorView> all{rng_state_};
  for (const auto& [role, view] : views_) all.push_back(view);
  all.insert(all.end(), params_.begin(), params_.end());
  all.insert(all.end(), dparams_.begin(), dparams_.end());
  for (const auto& [name, block] : blocks_) {
    std::vector<unsigned char> owned(block.size, 0);
    for (const TensorView& view : all) {
      const auto* data = static_cast<const std::byte*>(view.data);
      if (data < block.bytes.get() || data >= block.bytes.get() + block.size) continue;
      const std::int64_t begin = data - block.bytes.get(), width = static_cast<std::int64_t>(size_of(view.dtype));
      base::each_element(view, [&](std::int64_t, std::int64_t offset) {
        std::memset(owned.data() + begin + offset * width, 1, static_cast<std::size_t>(width));
      });
    }
    for (std::size_t i = 0; i < block.size; ++i)
      if (owned[i] == 0 && block.bytes[i] != untouched) return name;
  }
  return {};
}

}  // namespace foveal::problem
