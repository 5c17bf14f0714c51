#pragma once
// Tensors as foveal sees them: a pointer, a type, sizes and strides. Nothing is owned.
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "foveal/export.h"

namespace foveal {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, i16, i8, u8, boolean };

FOVEAL_API const char* to_string(DType dtype);
FOVEAL_API std::size_t size_of(DType dtype);  ///< bytes of one element
FOVEAL_API bool is_floating(DType dtype);

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// The caller's stream: a CUstream (cudaStream_t) for CUDA, ignored on the CPU.
struct Stream {
  void* handle = nullptr;
};

/// A strided view of memory that somebody else owns. Strides are in elements and may be 0 (broadcast, inputs only)
/// or negative; a dimension of size 1 may have any stride. A default-constructed view means "absent".
struct FOVEAL_API TensorView {
  static constexpr int max_rank = 6;

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, max_rank> sizes{};
  std::array<std::int64_t, max_rank> strides{};

  TensorView() = default;
  /// A contiguous (row-major) view. Throws invalid_argument when there are more than max_rank sizes or one is negative.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> sizes, Device device = {});
  /// A view with explicit strides, one for each size, in elements.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> sizes, std::initializer_list<std::int64_t> strides,
             Device device = {});

  /// True when the view stands for a tensor, even one without data (a shape to plan with). A rank-0 scalar with data is present.
  bool present() const { return rank > 0 || data != nullptr; }
  std::int64_t numel() const;
  /// `f32[2, 128, 8, 64]`
  std::string describe() const;
};

}  // namespace foveal
