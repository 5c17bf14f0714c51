#include "cuda/jit/kernel.h"

#include <mutex>
#include <string>

#include "base/check.h"
#include "base/lru_cache.h"

namespace foveal::cuda::jit {
struct Kernel::Loaded {
  std::shared_ptr<const Image> image;
  driver::Held library;
  driver::Function function = nullptr;
  mutable std::mutex mutex;
  mutable unsigned shared_bytes = 0;  ///< dynamic, allowed so far
};

Kernel::Kernel(std::shared_ptr<const Image> image, int device, unsigned shared_bytes) : image_(std::move(image)) {
  static auto& recent = *new base::LruCache<Loaded>(256);  // never destroyed: the driver may be gone when the process ends
  driver::Current current(device);
  const driver::Api& api = driver::api();
  const std::string key = base::join(static_cast<const void*>(image_.get()), " ", device, " ", static_cast<const void*>(&api));
  loaded_ = recent.find(key);
  if (!loaded_) {
    auto fresh = std::make_shared<Loaded>();
    fresh->image = image_;
    driver::Library library = nullptr;
    driver::KernelHandle kernel = nullptr;
    driver::check(
        driver::with_memory([&] { return api.library_load(&library, image_->bytes.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0); }),
        "cuLibraryLoadData");
    try {
      fresh->library = driver::Held(device, library);
    } catch (...) {
      api.library_unload(library);
      throw;
    }
    driver::check(api.library_kernel(&kernel, library, image_->stem.c_str()), "cuLibraryGetKernel");
    driver::check(api.kernel_function(&fresh->function, kernel), "cuKernelGetFunction");
    recent.insert(key, fresh);
    loaded_ = std::move(fresh);
  }
  const std::lock_guard lock(loaded_->mutex);
  if (shared_bytes > loaded_->shared_bytes) {
    driver::check(
        api.function_set_attribute(loaded_->function, driver::FunctionAttribute::max_dynamic_shared_bytes, static_cast<int>(shared_bytes)),
        "cuFuncSetAttribute(dynamic shared memory)");
    loaded_->shared_bytes = shared_bytes;
  }
}

void Kernel::launch_raw(const LaunchShape& shape, void* params, std::size_t bytes, Stream stream) const {
  void* arguments[] = {params, &bytes};  // the driver reads one; a recording reads the size, too
  driver::LaunchAttribute attributes[2] = {};
  unsigned count = 0;
  const auto add = [&](driver::LaunchAttribute::Id id) {
    attributes[count].id = id;
    attributes[count++].value.flag = 1;
  };
  if (shape.cooperative) add(driver::LaunchAttribute::cooperative);
  if (shape.programmatic && driver::has_programmatic_launches()) add(driver::LaunchAttribute::programmatic_stream_serialization);
  const driver::LaunchConfig config{
      shape.grid_x, shape.grid_y, shape.grid_z, shape.threads, 1, 1, shape.shared_bytes, driver::handle_of(stream), attributes, count};
  const driver::Result result = driver::api().launch(&config, loaded_->function, arguments, nullptr);
  if (result != 0) driver::check(result, ("cuLaunchKernelEx of " + image_->stem).c_str());
}

}  // namespace foveal::cuda::jit
