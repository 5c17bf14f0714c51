#include "base/dtype.h"

#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "base/float16.h"

namespace foveal {
namespace {

struct Facts {
  DType dtype;
  const char* name;
  std::size_t bytes;
  bool floating;
  double epsilon;
};

constexpr std::array<Facts, 10> facts{{
    {DType::f64, "f64", 8, true, 0x1p-52},
    {DType::f32, "f32", 4, true, 0x1p-23},
    {DType::bf16, "bf16", 2, true, 0x1p-7},
    {DType::f16, "f16", 2, true, 0x1p-10},
    {DType::i64, "i64", 8, false, 0},
    {DType::i32, "i32", 4, false, 0},
    {DType::i16, "i16", 2, false, 0},
    {DType::i8, "i8", 1, false, 0},
    {DType::u8, "u8", 1, false, 0},
    {DType::boolean, "boolean", 1, false, 0},
}};

const Facts& facts_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  FOVEAL_CHECK(index < facts.size(), "dtype: ", index, " is none; expected 0 to ", facts.size() - 1);
  return facts[index];
}

// Stored forms that are no arithmetic type.
struct Bf16 {
  std::uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(double value) : bits(base::float_to_bf16(base::round_to_odd(value))) {}
  explicit operator double() const { return base::bf16_to_float(bits); }
};
struct F16 {
  std::uint16_t bits = 0;
  F16() = default;
  explicit F16(double value) : bits(base::float_to_f16(base::round_to_odd(value))) {}
  explicit operator double() const { return base::f16_to_float(bits); }
};
struct Boolean {
  std::uint8_t byte = 0;
  Boolean() = default;
  explicit Boolean(double value) : byte(value != 0) {}
  explicit operator double() const { return byte != 0; }
};

/// Truncated, and the nearest that T holds where it holds none such; NaN is 0. A plain conversion is undefined there.
template <class T>
T to_integer(double value) {
  using Limits = std::numeric_limits<T>;
  if (value != value) return 0;
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  return value >= static_cast<double>(Limits::max()) ? Limits::max() : static_cast<T>(value);
}

/// The address of an element, which need not be aligned.
template <class T>
const char* at(const void* data, std::int64_t offset) {
  return static_cast<const char*>(data) + offset * static_cast<std::int64_t>(sizeof(T));
}

/// Calls fn(T{}), T being the stored form.
template <class Fn>
auto with_type(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f64:
      return fn(double{});
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(Bf16{});
    case DType::f16:
      return fn(F16{});
    case DType::i64:
      return fn(std::int64_t{});
    case DType::i32:
      return fn(std::int32_t{});
    case DType::i16:
      return fn(std::int16_t{});
    case DType::i8:
      return fn(std::int8_t{});
    case DType::u8:
      return fn(std::uint8_t{});
    case DType::boolean:
      break;
  }
  return fn(Boolean{});
}

}  // namespace

const char* to_string(DType dtype) { return facts_of(dtype).name; }
std::size_t size_of(DType dtype) { return facts_of(dtype).bytes; }
bool is_floating(DType dtype) { return facts_of(dtype).floating; }

namespace base {

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Facts& row : facts)
    if (name == row.name) return row.dtype;
  return std::nullopt;
}

bool is_integral(DType dtype) { return !is_floating(dtype) && dtype != DType::boolean; }

double epsilon(DType dtype) { return facts_of(dtype).epsilon; }

double load(const void* data, DType dtype, std::int64_t offset) {
  return with_type(dtype, [&]<class T>(T value) {
    std::memcpy(&value, at<T>(data, offset), sizeof value);
    return static_cast<double>(value);
  });
}

std::int64_t load_integer(const void* data, DType dtype, std::int64_t offset) {
  return with_type(dtype, [&]<class T>(T value) {
    std::memcpy(&value, at<T>(data, offset), sizeof value);
    if constexpr (std::is_integral_v<T>)
      return static_cast<std::int64_t>(value);
    else
      return to_integer<std::int64_t>(static_cast<double>(value));
  });
}

void store(void* data, DType dtype, std::int64_t offset, double value) {
  with_type(dtype, [&]<class T>(T) {
    T stored{};
    if constexpr (std::is_integral_v<T>)
      stored = to_integer<T>(value);
    else
      stored = static_cast<T>(value);
    std::memcpy(const_cast<char*>(at<T>(data, offset)), &stored, sizeof stored);
  });
}

double round_to(DType dtype, double value) {
  if (!is_floating(dtype)) return value;
  return with_type(dtype, [&]<class T>(T) { return static_cast<double>(static_cast<T>(value)); });
}

}  // namespace base
}  // namespace foveal
