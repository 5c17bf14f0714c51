#pragma once
// Non-owning strided tensor views, dtypes, devices and streams.
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "foveal/export.h"

namespace foveal {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, i16, i8, u8, boolean };

FOVEAL_API const char* to_string(DType dtype);
FOVEAL_API std::size_t size_of(DType dtype);  ///< bytes per element
FOVEAL_API bool is_floating(DType dtype);

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// A CUstream (cudaStream_t); null is the legacy default stream. Ignored on the CPU.
struct Stream {
  void* handle = nullptr;
};

/// A strided view of memory owned by the caller. Strides are in elements; they may be negative, and 0 for broadcast inputs. The stride of a
/// dimension of size 1 is ignored. A default-constructed view means "absent".
struct FOVEAL_API TensorView {
  static constexpr int max_rank = 6;

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, max_rank> sizes{};
  std::array<std::int64_t, max_rank> strides{};

  TensorView() = default;
  /// A contiguous (row-major) view. Throws invalid_argument if there are more than max_rank sizes or one is negative.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> sizes, Device device = {});
  /// A view with explicit strides in elements, one per size.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> sizes, std::initializer_list<std::int64_t> strides,
             Device device = {});

  /// Whether there is a tensor: one with data (also of rank 0), or a shape without data to plan with.
  bool present() const { return rank > 0 || data != nullptr; }
  std::int64_t numel() const;  ///< number of elements
  /// `f32[2, 128, 8, 64]`
  std::string describe() const;
};

}  // namespace foveal
