#pragma once
// What a plan loads on its device: kernels, each with the source that it is compiled from, and constant tables. A plan adds them when it
// is made and keeps the handles; load() fills in what these point to.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/jit/compile.h"
#include "cuda/jit/driver.h"
#include "cuda/jit/kernel.h"

namespace foveal::cuda::jit {

using KernelHandle = std::shared_ptr<const Kernel>;         ///< launched once its set is loaded
using TableHandle = std::shared_ptr<const driver::Memory>;  ///< likewise

class KernelSet {
 public:
  /// shared_bytes: dynamic shared memory, the most of any launch. The source's arch is left to set_arch().
  KernelHandle add(KernelSource source, unsigned shared_bytes = 0);
  /// The kernel that takes longest to compile: the first of sources(), whenever it is added.
  KernelHandle add_main(KernelSource source, unsigned shared_bytes);
  /// A copy of these bytes in device memory.
  template <class T>
  TableHandle add_table(const std::vector<T>& elements) {
    const auto bytes = std::as_bytes(std::span(elements));
    return add_table_bytes({bytes.begin(), bytes.end()});
  }

  const std::vector<KernelSource>& sources() const { return sources_; }
  /// Does a plan still have the handles?
  bool is_held() const {
    const auto shared = [](const auto& each) {
      return std::any_of(each.begin(), each.end(), [](const auto& one) { return one.is_held(); });
    };
    return shared(places_) || shared(tables_);
  }
  void set_arch(const std::string& arch);
  /// images: one for each of sources(), in their order.
  void load(const std::vector<std::shared_ptr<const Image>>& images, int device);

 private:
  struct Place {
    std::shared_ptr<Kernel> kernel;
    unsigned shared_bytes;
    bool is_held() const { return kernel.use_count() > 1; }
  };
  struct Table {
    std::shared_ptr<driver::Memory> memory;
    std::vector<std::byte> bytes;
    bool is_held() const { return memory.use_count() > 1; }
  };
  KernelHandle insert(std::size_t at, KernelSource source, unsigned shared_bytes);
  TableHandle add_table_bytes(std::vector<std::byte> bytes);

  std::vector<KernelSource> sources_;
  std::vector<Place> places_;  ///< of the sources' kernels
  std::vector<Table> tables_;
};

}  // namespace foveal::cuda::jit
