#include "cuda/launch/checked_pages.h"

#include <vector>

#include "base/dtype.h"
#include "cuda/cuda_memory.h"
#include "cuda/launch/wrapped_pass.h"
#include "problem/pages.h"

namespace foveal::cuda {
namespace {

class CheckedPages : public WrappedPass {
 public:
  using WrappedPass::WrappedPass;

  void describe(Explanation& e) const override {
    pass_->describe(e);
    e.details.emplace_back("checked pages", "block_table and seqlens_kv, before each run, which waits for the device");
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    {
      const driver::Current current(p_.device.index);
      cuda_memory(p_.device.index).synchronize(stream);
      std::vector<std::byte> pages, lengths;
      const TensorView table = on_host(buffers.block_table, pages);
      problem::check_pages(p_, table, on_host(buffers.seqlens_kv, lengths));
    }
    pass_->run(buffers, workspace, stream);
  }

 private:
  /// All from its first element in memory to its last.
  TensorView on_host(TensorView view, std::vector<std::byte>& copy) const {
    std::int64_t low = 0, high = 0;
    for (int d = 0; d < view.rank; ++d) {
      const auto at = static_cast<std::size_t>(d);
      if (view.sizes[at] == 0) return view;  // nothing of it is read
      const std::int64_t reach = (view.sizes[at] - 1) * view.strides[at];
      (reach < 0 ? low : high) += reach;
    }
    const auto width = static_cast<std::int64_t>(size_of(view.dtype));
    copy.resize(static_cast<std::size_t>((high - low + 1) * width));
    cuda_memory(p_.device.index).to_host(copy.data(), static_cast<const std::byte*>(view.data) + low * width, copy.size());
    view.data = copy.data() - low * width;
    return view;
  }
};

}  // namespace

std::unique_ptr<GpuExecutable> with_checked_pages(const problem::Problem& problem, std::unique_ptr<GpuExecutable> pass) {
  if (!problem.attention.checked || !problem.paged) return pass;
  return std::make_unique<CheckedPages>(problem, std::move(pass));
}

}  // namespace foveal::cuda
