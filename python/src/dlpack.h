#pragma once
// The part of DLPack's C exchange interface (version 1, dlpack.h) that reading a tensor in place needs: so that the wheel depends on no
// framework's headers.
#include <cstdint>

namespace foveal::python::dlpack {

constexpr std::uint32_t major_version = 1;

enum DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };
enum TypeCode : std::uint8_t { signed_integer = 0, unsigned_integer = 1, floating = 2, bfloat = 4, boolean = 6 };

struct Tensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t rank;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* sizes;
  std::int64_t* strides;  ///< in elements; null: contiguous
  std::uint64_t byte_offset;
};

/// What a framework's array type offers as its attribute `__dlpack_c_exchange_api__`, a capsule called "dlpack_exchange_api".
struct Exchange {
  std::uint32_t major, minor;
  Exchange* previous;
  void* allocate;
  void* export_managed;
  void* import_managed;
  int (*view)(void* array, Tensor* out);  ///< optional; nothing is owned or waited for
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

}  // namespace foveal::python::dlpack
