#include "dist/context_checks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "base/strided.h"
#include "cuda/cuda_memory.h"
#include "problem/overlap.h"

namespace foveal::dist {
namespace {

enum class Like : std::uint8_t { q, k, v, out, lse };
enum class Use : std::uint8_t { input, optional_input, output, optional_output };
/// A tensor of a pass, and whose shape it has.
struct ShardCheck {
  const char* name;
  const TensorView& view;
  Like like;
  Use use = Use::input;
};

void check_shard(const ShardCheck& check, const Context& c, Device device) {
  const TensorView& view = check.view;
  if ((check.use == Use::optional_input || check.use == Use::optional_output) && !view.present()) return;
  const bool of_keys = check.like == Like::k || check.like == Like::v, statistic = check.like == Like::lse;
  const std::int64_t rows = (of_keys ? c.plan.kv : c.plan.q).tokens(c.rank());
  const std::int64_t heads = of_keys ? c.shapes.heads_kv : c.shapes.heads_q;
  const std::int64_t dim = check.like == Like::q || check.like == Like::k ? c.shapes.head_dim : c.shapes.head_dim_v;
  const DType dtype = statistic ? c.wide() : c.shapes.dtype;
  std::vector<std::int64_t> expected = statistic ? std::vector{heads, rows} : std::vector{rows, heads, dim};
  if (!c.packed()) expected.insert(expected.begin(), c.shapes.batch);
  const bool same = view.rank == static_cast<int>(expected.size()) && view.dtype == dtype &&
                    std::equal(expected.begin(), expected.end(), view.sizes.begin());
  if (!same) {
    std::string wanted;
    for (const std::int64_t size : expected) wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
    base::fail(ErrorCode::invalid_argument, check.name, ": ", view.present() ? view.describe() : "absent", "; rank ", c.rank(), " of ",
               c.plan.ranks, " holds ", to_string(dtype), "[", wanted, "]");
  }
  problem::check_reach(check.name, view);
  FOVEAL_CHECK(view.device == device, check.name, ": on another device than q");
  FOVEAL_CHECK(view.data != nullptr || view.numel() == 0, check.name, ": data is null");
  if (check.use == Use::input || check.use == Use::optional_input || view.numel() == 0) return;
  const problem::TensorSpec spec{.present = true, .dtype = view.dtype, .rank = view.rank, .sizes = view.sizes, .strides = view.strides};
  FOVEAL_CHECK(!problem::overlaps_itself(spec), check.name, ": strides ", base::shape_text(view.strides.data(), view.rank),
               " put two elements in one place; an output's elements must be apart");
}

std::string all_digits(double number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

/// A sum over elements, each mixed with its row-major index: strides and threads make no difference.
std::uint64_t digest_of(const TensorView& view, const Executor& executor) {
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15u;  // far more apart than values of 32 bits
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  std::atomic<std::uint64_t> all = 0;
  base::parallel_runs(view, executor, [&](std::int64_t first, std::int64_t count, std::int64_t offset, std::int64_t stride) {
    const char* from = static_cast<const char*>(view.data) + offset * size;
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i, from += stride * size) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, from, static_cast<std::size_t>(size));
      sum += base::mix(bits + static_cast<std::uint64_t>(first + i) * golden);
    }
    all += sum;
  });
  return all;
}

/// By a copy in host memory of all bytes that the view reaches.
std::uint64_t digest_on_gpu(TensorView view, const Executor& executor) {
  if (view.numel() == 0) return 0;
  std::int64_t first = 0, last = 0;
  for (int d = 0; d < view.rank; ++d) {
    const std::int64_t reach = (view.sizes[static_cast<std::size_t>(d)] - 1) * view.strides[static_cast<std::size_t>(d)];
    (reach < 0 ? first : last) += reach;
  }
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  std::vector<std::byte> bytes(static_cast<std::size_t>((last - first + 1) * size));
  cuda::cuda_memory(view.device.index).to_host(bytes.data(), static_cast<std::byte*>(view.data) + first * size, bytes.size());
  view.data = bytes.data() - first * size;
  return digest_of(view, executor);
}

}  // namespace

std::string text_of(const std::vector<ParamBinding>& params) {
  std::string text;
  for (const ParamBinding& p : params) text += base::join(text.empty() ? "" : ", ", p.param.name(), ": ", p.tensor.describe());
  return text.empty() ? "none" : text;
}

void add_call(Agreement& agreement, const std::string& kind, const std::string& text) {
  agreement.add("call", base::hash64(kind), kind + ": " + text);
}

void add_plan(Agreement& agreement, const Context& c, const problem::Problem& problem, const std::vector<ParamBinding>& params) {
  const Attention& at = c.attention;
  std::string shapes =
      base::join(to_string(c.shapes.dtype), " batch ", c.shapes.batch, " heads ", c.shapes.heads_q, ':', c.shapes.heads_kv, " seqlen ",
                 c.shapes.seqlen_q, ':', c.shapes.seqlen_kv, " head_dim ", c.shapes.head_dim, ':', c.shapes.head_dim_v);
  if (c.packed()) shapes += " lengths";
  for (const auto& [q, kv] : c.shapes.lengths) shapes += base::join(' ', q, ':', kv);
  const std::string description =
      base::join(problem.score->text, at.sink ? " sink=" + at.sink->name() : "", " scale=", all_digits(problem.scale),
                 " dropout=", all_digits(at.dropout_p), " offsets=", at.q_offset, ':', at.kv_offset, at.checked ? " checked" : "",
                 " determinism=", to_string(at.determinism), " strategy=", to_string(at.backward));
  agreement.add("description (score, mask, scale, dropout)", description);
  agreement.add("shapes and lengths", shapes);
  agreement.add("parameters", text_of(params));
  agreement.add("options", base::join("deal ", c.options.deal, " head_groups ", c.options.head_groups, " remote_steps ",
                                      c.options.remote_steps, " machine ", c.options.machine, " unit ", c.options.unit));
  agreement.add("values that the mask reads", c.mask_digest, base::join("digest ", base::to_hex({c.mask_digest, 0}).substr(16)));
  agreement.add("plan (tensors that the mask reads)", c.plan.checksum, base::join("checksum ", base::to_hex({c.plan.checksum, 0})));
}

void add_rng(Agreement& agreement, const Context& c, const DropoutRng& rng) {
  if (c.attention.dropout_p == 0 || is_on_gpu(rng.state)) return agreement.add("rng (seed and offset)", 0, "a state on a GPU");
  std::uint64_t words[2] = {rng.seed, rng.offset};
  if (rng.state.present()) {
    FOVEAL_CHECK(rng.state.dtype == DType::i64 && rng.state.rank == 1 && rng.state.sizes[0] == 2 && rng.state.strides[0] == 1 &&
                     rng.state.data != nullptr && rng.state.device.kind == DeviceKind::cpu,
                 "rng.state: ", rng.state.describe(), "; expected i64[2], contiguous, in host memory");
    std::memcpy(words, rng.state.data, sizeof words);
  }
  agreement.add("rng (seed and offset)", base::join("seed ", words[0], ", offset ", words[1]));
}

void add_data(Agreement& agreement, const Context& c, const std::vector<ParamBinding>& params, Stream stream) {
  const Executor executor = base::default_executor(c.options.plan.threads);
  std::string text;
  bool waited = false;
  for (const ParamBinding& p : params) {
    const bool on_gpu = is_on_gpu(p.tensor);
    if (on_gpu && !waited) cuda::cuda_memory(p.tensor.device.index).synchronize(stream), waited = true;
    const std::uint64_t digest = on_gpu ? digest_on_gpu(p.tensor, executor) : digest_of(p.tensor, executor);
    text += base::join(text.empty() ? "" : ", ", p.param.name(), ": data of digest ", base::to_hex({digest, 0}).substr(16));
  }
  agreement.add("values of parameters, which are those of the whole on every rank", text);
}

std::uint64_t digest_of_mask(const Context& c, const std::vector<ParamBinding>& params) {
  std::string bytes;
  for (const std::string& name : c.mask_reads)
    for (const ParamBinding& p : params) {
      if (!p.param.present() || p.param.name() != name) continue;
      base::each_element(p.tensor, [&](std::int64_t, std::int64_t offset) {
        const double value = base::load(p.tensor.data, p.tensor.dtype, offset);
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      });
    }
  return base::hash64(bytes);
}

void check_params(const std::vector<ParamBinding>& params, const char* what) {
  for (const ParamBinding& p : params) {
    FOVEAL_CHECK(p.param.present(), "params: a binding without a parameter");
    const std::vector<std::int64_t>& shape = p.param.shape();
    const bool same = p.tensor.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), p.tensor.sizes.begin());
    FOVEAL_CHECK(same && p.tensor.data != nullptr, what, " ", p.param.name(), ": ", p.tensor.present() ? p.tensor.describe() : "absent",
                 p.tensor.data == nullptr ? " without data" : "", "; expected ", base::shape_text(shape), " as declared, with data");
    problem::check_reach(p.param.name().c_str(), p.tensor);
  }
}

void check_mask_data(const Context& c, const std::vector<ParamBinding>& params) {
  for (const ParamBinding& p : params)
    if (p.tensor.device.kind == DeviceKind::cuda) return;  // to read them is to wait for the GPU
  FOVEAL_CHECK(c.mask_reads.empty() || digest_of_mask(c, params) == c.mask_digest, "params: the mask reads ", c.mask_reads.front(),
               ", whose data differ from those that the plan was made for; make a ContextAttention for these");
}

void check_shards(const Context& c, const ForwardInputs& in, const ForwardOutputs& out) {
  for (const ShardCheck& check : {ShardCheck{"q", in.q, Like::q},
                                  {"k", in.k, Like::k},
                                  {"v", in.v, Like::v},
                                  {"out", out.out, Like::out, Use::output},
                                  {"lse", out.lse, Like::lse, Use::optional_output}})
    check_shard(check, c, in.q.device);
  problem::check_places(in, out);
}
void check_shards(const Context& c, const BackwardInputs& in, const BackwardOutputs& out) {
  for (const ShardCheck& check : {ShardCheck{"q", in.q, Like::q},
                                  {"k", in.k, Like::k},
                                  {"v", in.v, Like::v},
                                  {"out", in.out, Like::out},
                                  {"dout", in.dout, Like::out},
                                  {"lse", in.lse, Like::lse},
                                  {"dlse", in.dlse, Like::lse, Use::optional_input},
                                  {"dq", out.dq, Like::q, Use::optional_output},
                                  {"dk", out.dk, Like::k, Use::optional_output},
                                  {"dv", out.dv, Like::v, Use::optional_output}})
    check_shard(check, c, in.q.device);
  problem::check_places(in, out);
}

}  // namespace foveal::dist
