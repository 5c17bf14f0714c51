#include "cuda/launch/gather_pages.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/divide.h"
#include "base/wide_type.h"
#include "cuda/device/pages_args.cuh"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/wrapped_pass.h"
#include "plan/gather_pages.h"

namespace foveal::cuda {
namespace {

constexpr std::int64_t pieces_of_a_thread = 8, most_ctas = 65535;

unsigned ctas(std::int64_t work, std::int64_t per_cta) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(base::divide_up(work, per_cta), 1, most_ctas));
}

/// 16 bytes at once where rows allow; the gathered ones begin at multiples of 256.
bool in_pieces(const problem::TensorSpec& pool) {
  const auto count = static_cast<std::int64_t>(16 / size_of(pool.dtype));
  const auto multiple = [&](int d) {
    return pool.sizes[static_cast<std::size_t>(d)] <= 1 || pool.strides[static_cast<std::size_t>(d)] % count == 0;
  };
  return pool.aligned && pool.sizes[3] % count == 0 && pool.strides[3] == 1 && multiple(0) && multiple(1) && multiple(2);
}

class GatherPages : public WrappedPass {
 public:
  GatherPages(const problem::Problem& paged, std::unique_ptr<GpuExecutable> pass)
      : WrappedPass(paged, std::move(pass)), gathered_(gathered(paged)) {
    rows_offset_ = workspace_.reserve(planning::gathered_bytes(gathered_));
    if (sums()) {
      uses_offset_ = workspace_.reserve(static_cast<std::size_t>(p_.batch * p_.block_table.sizes[1]) * sizeof(device::PageUse));
      of_page_offset_ = workspace_.reserve(static_cast<std::size_t>(p_.pages()) * sizeof(device::PageUses));
      used_offset_ = workspace_.reserve(sizeof(int));
    }
    gather_k_ = kernels_.add(gather_source(p_.k)), gather_v_ = kernels_.add(gather_source(p_.v));
    if (!sums()) return;
    jit::Constants list, sum;
    list.set_type("SeqlenKvIndex", lengths_type());
    sum.set_type("Element", jit::device_type(p_.dtype)).set_type("Wide", jit::device_type(base::wide_type(p_.dtype)));
    list_uses_ = kernels_.add({.stem = "list_page_uses", .constants = list});
    sum_ = kernels_.add({.stem = "sum_pages", .constants = sum});
  }

  std::string kernel() const override { return pass_->kernel() + ".gathered"; }
  void describe(Explanation& e) const override {
    pass_->describe(e);
    e.kernel = kernel();
    planning::describe_gathered(gathered_, p_.page_size(), e);
  }

  void run(const problem::Buffers& given, void* workspace, Stream stream) const override {
    const driver::Current current(p_.device.index);
    planning::OwnBuffers buffers(given);
    planning::place_gathered(gathered_, Workspace::at<void>(workspace, rows_offset_), *buffers);
    gather(*gather_k_, p_.k, args_of(given, given.k, buffers->k, workspace), stream);
    gather(*gather_v_, p_.v, args_of(given, given.v, buffers->v, workspace), stream);
    pass_->run(*buffers, workspace, stream);
    if (!sums()) return;
    const device::PagesArgs lists = args_of(given, {}, {}, workspace);
    driver::fill(lists.used, 0, sizeof(int), stream);
    list_uses_->launch(
        {.grid_x = static_cast<unsigned>(base::divide_up(p_.pages(), device::kPageThreads / 32)), .threads = device::kPageThreads}, lists,
        stream);
    if (p_.dk.present) sum(args_of(given, given.dk, buffers->dk, workspace), stream);
    if (p_.dv.present) sum(args_of(given, given.dv, buffers->dv, workspace), stream);
  }

 private:
  bool sums() const { return p_.dk.present || p_.dv.present; }
  const char* lengths_type() const { return jit::device_type(p_.seqlens_kv.dtype); }

  jit::KernelSource gather_source(const problem::TensorSpec& pool) const {
    const auto bytes = static_cast<int>(size_of(pool.dtype));
    const char* element = bytes == 8 ? "unsigned long long" : bytes == 4 ? "unsigned" : "unsigned short";
    jit::Constants constants;
    constants.set_type("Piece", in_pieces(pool) ? "uint4" : element)
        .set_type("SeqlenKvIndex", lengths_type())
        .set_struct("kConfig", "GatherPagesConfig", "pages_args.cuh",
                    device::GatherPagesConfig{.piece_elements = in_pieces(pool) ? 16 / bytes : 1});
    return {.stem = "gather_pages", .constants = constants};
  }

  device::PagesArgs args_of(const problem::Buffers& given, const TensorView& pool, const TensorView& rows, void* workspace) const {
    const auto tensor = [](const TensorView& view) {
      return device::Tensor{view.data, view.strides[0], view.strides[1], view.strides[2], view.strides[3], 0, 0};
    };
    return {.pool = tensor(pool),
            .rows = tensor(rows),
            .table = block_table(given),
            .lengths = given.seqlens_kv.data,
            .batch = static_cast<int>(p_.batch),
            .width = static_cast<int>(p_.block_table.sizes[1]),
            .pages = static_cast<int>(p_.pages()),
            .page_size = static_cast<int>(p_.page_size()),
            .seqlen_kv = static_cast<int>(gathered_.seqlen_kv),
            .heads = static_cast<int>(p_.heads_kv),
            .dim = static_cast<int>(pool.sizes[3]),
            .unused = 0,
            .uses = sums() ? Workspace::at<device::PageUse>(workspace, uses_offset_) : nullptr,
            .of_page = sums() ? Workspace::at<device::PageUses>(workspace, of_page_offset_) : nullptr,
            .used = sums() ? Workspace::at<int>(workspace, used_offset_) : nullptr};
  }

  void gather(const jit::Kernel& kernel, const problem::TensorSpec& pool, const device::PagesArgs& args, Stream stream) const {
    if (in_pieces(pool) && reinterpret_cast<std::uintptr_t>(args.pool.data) % 16 != 0)
      base::fail(ErrorCode::invalid_argument, "a pool of pages begins at ", args.pool.data,
                 ", no multiple of 16 bytes as those that were planned for; plan with tensors like it");
    const std::int64_t pieces =
        std::int64_t{args.seqlen_kv} * args.heads * args.dim / (in_pieces(pool) ? 16 / static_cast<int>(size_of(pool.dtype)) : 1);
    kernel.launch({.grid_x = ctas(pieces, device::kPageThreads * pieces_of_a_thread),
                   .grid_y = static_cast<unsigned>(args.batch),
                   .threads = device::kPageThreads},
                  args, stream);
  }

  void sum(const device::PagesArgs& args, Stream stream) const {
    const std::int64_t elements = std::int64_t{args.page_size} * args.heads * args.dim;
    sum_->launch({.grid_x = static_cast<unsigned>(args.pages),
                  .grid_y = ctas(elements, device::kPageThreads * pieces_of_a_thread),
                  .threads = device::kPageThreads},
                 args, stream);
  }

  problem::Problem gathered_;
  std::size_t rows_offset_ = 0, uses_offset_ = 0, of_page_offset_ = 0, used_offset_ = 0;
  jit::KernelHandle gather_k_, gather_v_, list_uses_, sum_;
};

}  // namespace

problem::Problem gathered(const problem::Problem& paged) {
  return planning::gathered(paged, base::wide_type(paged.dtype), device::kRowsMultiple);
}

std::optional<std::string> refuses_gathering(const problem::Problem& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t rows = base::round_up(p.seqlen_kv, device::kRowsMultiple);
  if (p.batch > most_ctas) return base::join("batch ", p.batch, " with keys on pages exceeds ", most_ctas);
  if (rows > 0 && p.batch > most / rows)
    return base::join("batch ", p.batch, " times ", rows, " keys that a row of block_table holds exceeds ", most);
  if (p.pages() > most || p.page_size() * p.heads_kv * std::max(p.head_dim, p.head_dim_v) > most) return "too many pages for 32 bits";
  return std::nullopt;
}

std::unique_ptr<GpuExecutable> with_gathered_pages(const problem::Problem& paged, std::unique_ptr<GpuExecutable> pass) {
  return std::make_unique<GatherPages>(paged, std::move(pass));
}

}  // namespace foveal::cuda
