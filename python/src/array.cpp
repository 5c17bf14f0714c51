// Arrays are read through one of three interfaces, chosen once per Python type: DLPack's C exchange API (torch), the buffer protocol
// (NumPy), or Python attributes (all others, foveal/arrays.py).
#include "array.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/strided.h"
#include "dlpack.h"
#include "foveal/error.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

struct Reader {
  nb::object type;  ///< kept alive, since it is the key
  const dlpack::Exchange* exchange = nullptr;
  bool buffer = false;
};

const dlpack::Exchange* exchange_of(nb::handle type) {
  if (!nb::hasattr(type, "__dlpack_c_exchange_api__")) return nullptr;
  const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
  auto* exchange = static_cast<dlpack::Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (exchange == nullptr) PyErr_Clear();
  while (exchange != nullptr && exchange->major != dlpack::major_version) exchange = exchange->previous;
  return exchange != nullptr && exchange->view != nullptr ? exchange : nullptr;
}

const Reader& reader_of(nb::handle array) {
  static auto& readers = *new std::unordered_map<PyObject*, Reader>;  // never destroyed: must outlive the interpreter
  static const Reader* last = nullptr;
  const nb::handle type = array.type();
  if (last != nullptr && last->type.is(type)) return *last;
  auto [it, is_new] = readers.try_emplace(type.ptr());
  if (is_new) {
    it->second.type = nb::borrow(type);
    it->second.exchange = exchange_of(type);
    const bool masked = nb::hasattr(type, "harden_mask");  // NumPy masked arrays, which foveal.arrays refuses
    it->second.buffer = it->second.exchange == nullptr && !masked && PyObject_CheckBuffer(array.ptr()) != 0;
  }
  last = &it->second;
  return *last;
}

nb::object from_arrays(const char* function) { return nb::module_::import_("foveal.arrays").attr(function); }

/// Throws an error that names the dtype as its framework does.
[[noreturn]] void refuse_dtype(nb::handle array, const char* argument) {
  from_arrays("dtype_of")(array, argument);
  throw Error(ErrorCode::invalid_argument, std::string(argument) + ": its dtype is not supported");
}

TensorView empty_view(DType dtype, Device device, int rank, const char* argument) {
  if (rank > TensorView::max_rank)
    throw Error(ErrorCode::invalid_argument,
                std::string(argument) + ": rank " + std::to_string(rank) + "; expected at most " + std::to_string(TensorView::max_rank));
  TensorView view;
  view.dtype = dtype, view.device = device, view.rank = rank;
  return view;
}

std::optional<DType> integer_of(std::size_t bytes) {
  switch (bytes) {
    case 8:
      return DType::i64;
    case 4:
      return DType::i32;
    case 2:
      return DType::i16;
    case 1:
      return DType::i8;
    default:
      return std::nullopt;
  }
}

std::optional<DType> dtype_of(const dlpack::Tensor& tensor, bool by_bits) {
  if (tensor.lanes != 1) return std::nullopt;
  switch (tensor.code) {
    case dlpack::floating:
      return tensor.bits == 64   ? std::optional(DType::f64)
             : tensor.bits == 32 ? std::optional(DType::f32)
             : tensor.bits == 16 ? std::optional(DType::f16)
                                 : std::nullopt;
    case dlpack::bfloat:
      return tensor.bits == 16 ? std::optional(DType::bf16) : std::nullopt;
    case dlpack::signed_integer:
      return integer_of(tensor.bits / 8u);
    case dlpack::unsigned_integer:
      return tensor.bits == 8 ? std::optional(DType::u8) : by_bits && tensor.bits < 64 ? integer_of(tensor.bits / 8u) : std::nullopt;
    case dlpack::boolean:
      return tensor.bits == 8 ? std::optional(DType::boolean) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// Rethrows the framework's error, except for meta tensors, where it does not name the argument.
[[noreturn]] void refuse_view(nb::handle array, const char* argument) {
  const nb::python_error why;
  if (!nb::hasattr(array, "is_meta") || !nb::cast<bool>(array.attr("is_meta"))) throw why;
  throw Error(ErrorCode::invalid_argument,
              std::string(argument) + ": on device meta, where a tensor has no memory to read; expected cpu or cuda");
}

TensorView by_exchange(nb::handle array, const dlpack::Exchange& exchange, const char* argument, bool by_bits) {
  dlpack::Tensor tensor{};
  if (exchange.view(array.ptr(), &tensor) != 0) refuse_view(array, argument);
  const std::optional<DType> dtype = dtype_of(tensor, by_bits);
  if (!dtype) refuse_dtype(array, argument);
  Device device;
  if (tensor.device_type == dlpack::cuda || tensor.device_type == dlpack::cuda_managed)
    device = {DeviceKind::cuda, tensor.device_id};
  else if (tensor.device_type != dlpack::cpu && tensor.device_type != dlpack::cuda_host)
    throw Error(ErrorCode::invalid_argument,
                std::string(argument) + ": on DLPack device type " + std::to_string(tensor.device_type) + "; expected CPU or CUDA");
  TensorView view = empty_view(*dtype, device, tensor.rank, argument);
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  std::copy_n(tensor.sizes, tensor.rank, view.sizes.begin());
  if (tensor.strides != nullptr)
    std::copy_n(tensor.strides, tensor.rank, view.strides.begin());
  else
    base::make_contiguous(view);
  return view;
}

std::optional<DType> dtype_of(const Py_buffer& buffer, bool by_bits) {
  const char* format = buffer.format != nullptr ? buffer.format : "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  switch (*format) {
    case 'd':
      return DType::f64;
    case 'f':
      return DType::f32;
    case 'e':
      return DType::f16;
    case '?':
      return DType::boolean;
    case 'B':
      return DType::u8;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return integer_of(static_cast<std::size_t>(buffer.itemsize));
    case 'H':
    case 'I':
    case 'L':
      return by_bits && buffer.itemsize < 8 ? integer_of(static_cast<std::size_t>(buffer.itemsize)) : std::nullopt;
    default:
      return std::nullopt;
  }
}

/// None if the array does not expose its memory, or its format has no DType, such as bfloat16.
std::optional<TensorView> by_buffer(nb::handle array, const char* argument, bool by_bits) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  struct Release {
    Py_buffer& buffer;
    ~Release() { PyBuffer_Release(&buffer); }
  } release{buffer};
  const std::optional<DType> dtype = dtype_of(buffer, by_bits);
  if (!dtype) return std::nullopt;
  TensorView view = empty_view(*dtype, {}, buffer.ndim, argument);
  view.data = buffer.buf;
  for (int d = 0; d < buffer.ndim; ++d) {
    if (buffer.strides[d] % buffer.itemsize != 0) return std::nullopt;
    view.sizes[static_cast<std::size_t>(d)] = buffer.shape[d];
    view.strides[static_cast<std::size_t>(d)] = buffer.strides[d] / buffer.itemsize;
  }
  return view;
}

TensorView by_attributes(nb::handle array, const char* argument, bool by_bits) {
  static const nb::object& read = *new nb::object(from_arrays("read"));
  const auto [dtype, cuda, index, sizes, strides, address] =
      nb::cast<std::tuple<DType, bool, int, std::vector<std::int64_t>, std::vector<std::int64_t>, std::uintptr_t>>(
          read(array, argument, by_bits));
  TensorView view = empty_view(dtype, {cuda ? DeviceKind::cuda : DeviceKind::cpu, index}, static_cast<int>(sizes.size()), argument);
  view.data = reinterpret_cast<void*>(address);
  std::copy(sizes.begin(), sizes.end(), view.sizes.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

/// by_bits: unsigned integers of 16 and 32 bits count as signed ones.
TensorView view_by_reader(nb::handle array, const char* argument, bool by_bits) {
  const Reader& reader = reader_of(array);
  if (reader.exchange != nullptr) return by_exchange(array, *reader.exchange, argument, by_bits);
  if (reader.buffer)
    if (const std::optional<TensorView> view = by_buffer(array, argument, by_bits)) return *view;
  return by_attributes(array, argument, by_bits);
}

}  // namespace

TensorView view_of(nb::handle array, const char* argument) { return view_by_reader(array, argument, false); }

TensorView view_of_param(nb::handle array, const char* argument) { return view_by_reader(array, argument, true); }

Stream stream_of(nb::handle array, Device device) {
  if (device.kind != DeviceKind::cuda) return {};
  const Reader& reader = reader_of(array);
  void* handle = nullptr;
  if (reader.exchange != nullptr) {
    if (reader.exchange->current_stream(dlpack::cuda, device.index, &handle) != 0) throw nb::python_error();
    return {handle};
  }
  static const nb::object& stream = *new nb::object(from_arrays("stream"));
  return {reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream(array)))};
}

TensorView contiguous_view(DType dtype, Device device, const std::int64_t* sizes, int rank) {
  TensorView view = empty_view(dtype, device, rank, "tensor");
  std::copy_n(sizes, rank, view.sizes.begin());
  base::make_contiguous(view);
  return view;
}

}  // namespace foveal::python
