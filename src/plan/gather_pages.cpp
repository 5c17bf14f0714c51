#include "plan/gather_pages.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/divide.h"
#include "base/dtype.h"
#include "base/float16.h"
#include "base/of_thread.h"
#include "base/parallel.h"

namespace foveal::planning {
namespace {

using problem::Buffers;
using problem::Problem;
using problem::TensorSpec;

std::size_t rounded(std::size_t bytes) { return base::round_up(bytes, std::size_t{256}); }

/// p: the gathered problem.
TensorSpec gathered_spec(const Problem& p, const TensorSpec& paged, DType dtype) {
  if (!paged.present) return paged;
  const std::int64_t heads = paged.sizes[2], dim = paged.sizes[3];
  TensorSpec spec{.present = true, .dtype = dtype, .rank = 4};
  spec.sizes = {1, p.batch * p.seqlen_kv, heads, dim};
  spec.strides = {0, heads * dim, dim, 1};  // one batch entry for all queries
  return spec;
}

std::size_t bytes_of(const TensorSpec& spec) {
  if (!spec.present) return 0;
  return rounded(static_cast<std::size_t>(spec.sizes[1] * spec.sizes[2] * spec.sizes[3]) * size_of(spec.dtype));
}

/// Keys [index * page_size, ...) of the sequence are on `page`.
struct Use {
  std::int32_t page, sequence, index;
  friend bool operator<(const Use& a, const Use& b) {
    return std::tie(a.page, a.sequence, a.index) < std::tie(b.page, b.sequence, b.index);
  }
};

class GatherPages final : public Executable {
 public:
  GatherPages(const Problem& paged, DType gradients, const PlanOptions& options, std::unique_ptr<Executable> inner)
      : p_(paged),
        gathered_(gathered(paged, gradients)),
        executor_(options.executor ? *options.executor : base::default_executor(options.threads)),
        inner_(std::move(inner)) {}

  std::size_t workspace_bytes() const override {
    return rounded(inner_->workspace_bytes()) + gathered_bytes(gathered_) + rounded(static_cast<std::size_t>(most_uses()) * sizeof(Use));
  }
  std::string kernel() const override { return inner_->kernel() + ".gathered"; }
  void describe(Explanation& explanation) const override {
    inner_->describe(explanation);
    describe_gathered(gathered_, p_.page_size(), explanation);
  }

  void run(const Buffers& given, void* workspace, Stream stream) const override {
    auto* next = static_cast<std::byte*>(workspace) + rounded(inner_->workspace_bytes());
    OwnBuffers buffers(given);
    place_gathered(gathered_, next, *buffers);
    const std::span<const Use> uses = list_uses(given, reinterpret_cast<Use*>(next + gathered_bytes(gathered_)));
    base::parallel_for(executor_, static_cast<std::int64_t>(uses.size()), [&](std::int64_t i, int) {
      gather(given, given.k, buffers->k, uses[static_cast<std::size_t>(i)]);
      gather(given, given.v, buffers->v, uses[static_cast<std::size_t>(i)]);
    });
    inner_->run(*buffers, workspace, stream);
    if (!p_.dk.present && !p_.dv.present) return;
    base::parallel_for(executor_, p_.pages(), [&](std::int64_t page, int) {
      const auto of_page = std::equal_range(uses.begin(), uses.end(), Use{static_cast<std::int32_t>(page), 0, 0},
                                            [](const Use& a, const Use& b) { return a.page < b.page; });
      const std::span<const Use> mine(of_page.first, of_page.second);
      if (p_.dk.present) scatter(given, buffers->dk, given.dk, page, mine);
      if (p_.dv.present) scatter(given, buffers->dv, given.dv, page, mine);
    });
  }

 private:
  std::int64_t most_uses() const { return p_.batch * p_.block_table.sizes[1]; }

  static std::int64_t length(const Buffers& b, std::int64_t sequence) {
    return base::load_integer(b.seqlens_kv.data, b.seqlens_kv.dtype, sequence * b.seqlens_kv.strides[0]);
  }
  /// Number of keys of the sequence on the page.
  std::int64_t rows(const Buffers& b, const Use& use) const {
    return std::min(p_.page_size(), length(b, use.sequence) - use.index * p_.page_size());
  }
  std::int64_t first_row(const Use& use) const { return use.sequence * p_.seqlen_kv + use.index * p_.page_size(); }

  /// All uses of pages, sorted by page.
  std::span<const Use> list_uses(const Buffers& b, Use* uses) const {
    const auto* pages = static_cast<const std::int32_t*>(b.block_table.data);
    Use* end = uses;
    for (std::int32_t sequence = 0; sequence < p_.batch; ++sequence)
      for (std::int32_t index = 0; index * p_.page_size() < length(b, sequence); ++index)
        *end++ = {pages[sequence * b.block_table.strides[0] + index * b.block_table.strides[1]], sequence, index};
    std::sort(uses, end);
    return {uses, end};
  }

  void gather(const Buffers& b, const TensorView& pool, const TensorView& together, const Use& use) const {
    const auto width = static_cast<std::int64_t>(size_of(pool.dtype));
    const std::int64_t count = rows(b, use), heads = pool.sizes[2], dim = pool.sizes[3];
    for (std::int64_t row = 0; row < count; ++row)
      for (std::int64_t head = 0; head < heads; ++head) {
        const char* from =
            static_cast<const char*>(pool.data) + (use.page * pool.strides[0] + row * pool.strides[1] + head * pool.strides[2]) * width;
        char* to = static_cast<char*>(together.data) + ((first_row(use) + row) * together.strides[1] + head * together.strides[2]) * width;
        if (pool.strides[3] == 1) {
          std::memcpy(to, from, static_cast<std::size_t>(dim * width));
        } else {
          for (std::int64_t d = 0; d < dim; ++d)
            std::memcpy(to + d * width, from + d * pool.strides[3] * width, static_cast<std::size_t>(width));
        }
      }
  }

  /// Writes all rows of a page: the sum over the sequences that use it.
  void scatter(const Buffers& b, const TensorView& together, const TensorView& pool, std::int64_t page, std::span<const Use> uses) const {
    constexpr std::int64_t at_once = 256;
    double sums[at_once];
    const std::int64_t heads = pool.sizes[2], dim = pool.sizes[3];
    for (std::int64_t row = 0; row < p_.page_size(); ++row)
      for (std::int64_t head = 0; head < heads; ++head)
        for (std::int64_t d = 0; d < dim; d += at_once) {
          const std::int64_t count = std::min(at_once, dim - d);
          bool any = false;
          for (const Use& use : uses) {
            if (row >= rows(b, use)) continue;
            const std::int64_t from = (first_row(use) + row) * together.strides[1] + head * together.strides[2] + d;
            const auto take = [&](const auto* values) {
              for (std::int64_t i = 0; i < count; ++i) sums[i] = any ? sums[i] + static_cast<double>(values[from + i]) : values[from + i];
            };
            together.dtype == DType::f64 ? take(static_cast<const double*>(together.data)) : take(static_cast<const float*>(together.data));
            any = true;
          }
          if (!any) std::fill_n(sums, count, 0.0);
          write(pool, page * pool.strides[0] + row * pool.strides[1] + head * pool.strides[2] + d * pool.strides[3], sums, count);
        }
  }

  static void write(const TensorView& pool, std::int64_t offset, const double* values, std::int64_t count) {
    const std::int64_t stride = pool.strides[3];
    const auto each = [&](auto* to, auto convert) {
      for (std::int64_t i = 0; i < count; ++i) to[offset + i * stride] = convert(values[i]);
    };
    switch (pool.dtype) {
      case DType::f32:
        return each(static_cast<float*>(pool.data), [](double x) { return static_cast<float>(x); });
      case DType::bf16:
        return each(static_cast<std::uint16_t*>(pool.data), [](double x) { return base::float_to_bf16(base::round_to_odd(x)); });
      case DType::f16:
        return each(static_cast<std::uint16_t*>(pool.data), [](double x) { return base::float_to_f16(base::round_to_odd(x)); });
      default:
        return each(static_cast<double*>(pool.data), [](double x) { return x; });
    }
  }

  Problem p_, gathered_;
  Executor executor_;
  std::unique_ptr<Executable> inner_;
};

}  // namespace

OwnBuffers::OwnBuffers(const Buffers& given) : buffers_(std::exchange(home(), {})) { buffers_ = given; }
OwnBuffers::~OwnBuffers() { home() = std::move(buffers_); }
Buffers& OwnBuffers::home() {
  struct Home {
    Buffers buffers;
  };
  return base::of_thread<Home>().buffers;
}

Problem gathered(const Problem& paged, DType gradients, std::int64_t rows_multiple) {
  Problem p = paged;
  p.paged = false, p.gathered = true;
  p.seqlen_kv = base::round_up(p.seqlen_kv, rows_multiple);
  p.total_kv = p.batch * p.seqlen_kv;
  p.k = gathered_spec(p, paged.k, paged.k.dtype), p.v = gathered_spec(p, paged.v, paged.v.dtype);
  p.dk = gathered_spec(p, paged.dk, gradients), p.dv = gathered_spec(p, paged.dv, gradients);
  return p;
}

std::size_t gathered_bytes(const Problem& gathered) {
  return bytes_of(gathered.k) + bytes_of(gathered.v) + bytes_of(gathered.dk) + bytes_of(gathered.dv);
}

void place_gathered(const Problem& gathered, void* memory, Buffers& buffers) {
  auto* next = static_cast<std::byte*>(memory);
  const auto place = [&](const TensorSpec& spec, TensorView& view) {
    if (!spec.present) return;
    view.data = next;
    view.dtype = spec.dtype, view.sizes = spec.sizes, view.strides = spec.strides;
    next += bytes_of(spec);
  };
  place(gathered.k, buffers.k), place(gathered.v, buffers.v);
  place(gathered.dk, buffers.dk), place(gathered.dv, buffers.dv);
}

void describe_gathered(const Problem& gathered, std::int64_t page_size, Explanation& explanation) {
  explanation.details.emplace_back("pages", base::join("keys of a sequence are gathered from pages of ", page_size, ", ",
                                                       gathered_bytes(gathered) >> 20, " MiB of workspace"));
}

std::unique_ptr<Executable> with_gathered_pages(const Problem& problem, DType gradients, const PlanOptions& options,
                                                std::unique_ptr<Executable> inner) {
  return std::make_unique<GatherPages>(problem, gradients, options, std::move(inner));
}

}  // namespace foveal::planning
