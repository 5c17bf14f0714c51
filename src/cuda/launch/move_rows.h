#pragma once
// Kernels that copy and add rows between buffers of one device, and turn the sums of an attention's parts into its results. Compiled on
// first use.
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/device/rows_args.cuh"
#include "cuda/jit/kernel.h"

namespace foveal::cuda {

/// [batch, tokens, heads, dim] on a device; strides in elements.
struct DeviceRows {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch = 0, token = 0, head = 0, dim = 1;
  device::RowsView view() const { return {data, batch, token, head, dim}; }
};

struct RowSizes {
  std::int64_t batch = 0, tokens = 0, heads = 0, dim = 1;
};

/// only_loads: kernels are loaded and not launched.
struct RowStream {
  Stream stream{};
  bool only_loads = false;
};

class RowKernels {
 public:
  explicit RowKernels(int device) : device_(device) {}

  /// to = from, or to += from; types may differ.
  void move(const DeviceRows& from, const DeviceRows& to, const RowSizes& sizes, bool adds, RowStream stream) const;
  /// to = from + more[0] + more[1] ..., in this order; all but `to` are of one type. At most most_sums more.
  static constexpr std::size_t most_sums = device::kMaxMoreRows;
  void sum(const DeviceRows& from, const std::vector<DeviceRows>& more, const DeviceRows& to, const RowSizes& sizes,
           RowStream stream) const;
  /// out and lse (no data: unwanted) from the wide sums of parts; sink: a logit for each of these heads, or no data.
  void finish(const DeviceRows& wide, const DeviceRows& sums, const DeviceRows& out, const DeviceRows& lse, const DeviceRows& sink,
              const RowSizes& sizes, RowStream stream) const;
  /// gradient: f64, one for each head.
  void sink_gradient(const DeviceRows& out, const DeviceRows& dout, const DeviceRows& lse, const DeviceRows& dlse, const DeviceRows& sink,
                     double* gradient, const RowSizes& sizes, RowStream stream) const;

 private:
  void move(const DeviceRows& from, const std::vector<DeviceRows>& more, const DeviceRows& to, const RowSizes& sizes, bool adds,
            RowStream stream) const;
  const jit::Kernel* kernel(const std::string& stem, const jit::Constants& constants) const;

  int device_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, jit::Kernel> kernels_;
};

/// Those of a device.
const RowKernels& row_kernels(int device);

/// Every kernel that these functions may launch for an element type: for tests without a device.
std::vector<jit::KernelSource> row_kernel_sources(DType element);

}  // namespace foveal::cuda
