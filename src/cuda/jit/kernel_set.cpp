#include "cuda/jit/kernel_set.h"

#include <utility>

#include "base/check.h"

namespace foveal::cuda::jit {

KernelHandle KernelSet::insert(std::size_t at, KernelSource source, unsigned shared_bytes) {
  const auto offset = static_cast<std::ptrdiff_t>(at);
  sources_.insert(sources_.begin() + offset, std::move(source));
  return places_.insert(places_.begin() + offset, {std::make_shared<Kernel>(), shared_bytes})->kernel;
}

KernelHandle KernelSet::add(KernelSource source, unsigned shared_bytes) { return insert(sources_.size(), std::move(source), shared_bytes); }

KernelHandle KernelSet::add_main(KernelSource source, unsigned shared_bytes) { return insert(0, std::move(source), shared_bytes); }

TableHandle KernelSet::add_table_bytes(std::vector<std::byte> bytes) {
  tables_.push_back({std::make_shared<driver::Memory>(), std::move(bytes)});
  return tables_.back().memory;
}

void KernelSet::set_arch(const std::string& arch) {
  for (KernelSource& source : sources_) source.arch = arch;
}

void KernelSet::load(const std::vector<std::shared_ptr<const Image>>& images, int device) {
  FOVEAL_CHECK(images.size() == places_.size(), images.size(), " images for ", places_.size(), " kernels");
  for (std::size_t i = 0; i < images.size(); ++i) *places_[i].kernel = Kernel(images[i], device, places_[i].shared_bytes);
  for (Table& table : tables_) *table.memory = driver::Memory(device, table.bytes.data(), table.bytes.size());
  tables_.clear();
}

}  // namespace foveal::cuda::jit
