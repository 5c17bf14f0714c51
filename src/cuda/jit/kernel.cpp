#include "cuda/jit/kernel.h"

#include <map>
#include <mutex>
#include <tuple>

#include "base/check.h"

namespace foveal::cuda::jit {
namespace {

struct Handle {
  driver::Function function = nullptr;
  unsigned shared_bytes = 0;
};

// Loaded functions live as long as the process: unloading would have to wait for every stream.
std::mutex handles_mutex;
std::map<std::tuple<std::string, int, const driver::Api*>, Handle> handles;

}  // namespace

Kernel::Kernel(std::shared_ptr<const Image> image, int device, unsigned shared_bytes) : image_(std::move(image)) {
  driver::Current current(device);
  const driver::Api& api = driver::api();
  std::lock_guard lock(handles_mutex);
  Handle& handle = handles[{image_->key, device, &api}];
  if (!handle.function) {
    driver::Library library = nullptr;
    driver::KernelHandle kernel = nullptr;
    driver::check(api.library_load(&library, image_->bytes.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    driver::check(api.library_kernel(&kernel, library, image_->entry.c_str()), "cuLibraryGetKernel");
    driver::check(api.kernel_function(&handle.function, kernel), "cuKernelGetFunction");
  }
  if (shared_bytes > handle.shared_bytes) {
    driver::check(
        api.function_set_attribute(handle.function, driver::FunctionAttribute::max_dynamic_shared_bytes, static_cast<int>(shared_bytes)),
        "cuFuncSetAttribute(dynamic shared memory)");
    handle.shared_bytes = shared_bytes;
  }
  function_ = handle.function;
}

int Kernel::max_blocks_per_multiprocessor(unsigned threads, unsigned shared_bytes) const {
  int blocks = 0;
  driver::check(driver::api().occupancy(&blocks, function_, static_cast<int>(threads), shared_bytes), "cuOccupancyMaxActiveBlocks");
  return blocks;
}

void Kernel::launch_raw(const LaunchShape& shape, void* params, std::size_t bytes, Stream stream) const {
  void* arguments[] = {params, &bytes};  // the driver reads as many as the kernel has, one; who records the launch finds the size behind it
  driver::LaunchAttribute cooperative{};
  cooperative.id = driver::LaunchAttribute::cooperative;
  cooperative.value.cooperative = 1;
  const driver::LaunchConfig config{shape.grid_x,
                                    shape.grid_y,
                                    shape.grid_z,
                                    shape.threads,
                                    1,
                                    1,
                                    shape.shared_bytes,
                                    static_cast<driver::StreamHandle>(stream.handle),
                                    &cooperative,
                                    shape.cooperative ? 1u : 0u};
  const driver::Result result = driver::api().launch(&config, function_, arguments, nullptr);
  if (result != 0) driver::check(result, ("launch of " + image_->entry).c_str());
}

}  // namespace foveal::cuda::jit
