#include "base/dtype.h"

#include <array>
#include <cstring>

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

template <class T>
T element(const void* data, std::int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + offset * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void set_element(void* data, std::int64_t offset, T value) {
  std::memcpy(static_cast<char*>(data) + offset * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
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
  switch (dtype) {
    case DType::f64:
      return element<double>(data, offset);
    case DType::f32:
      return element<float>(data, offset);
    case DType::bf16:
      return bf16_to_float(element<std::uint16_t>(data, offset));
    case DType::f16:
      return f16_to_float(element<std::uint16_t>(data, offset));
    default:
      return static_cast<double>(load_integer(data, dtype, offset));
  }
}

std::int64_t load_integer(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::i64:
      return element<std::int64_t>(data, offset);
    case DType::i32:
      return element<std::int32_t>(data, offset);
    case DType::i16:
      return element<std::int16_t>(data, offset);
    case DType::i8:
      return element<std::int8_t>(data, offset);
    case DType::u8:
      return element<std::uint8_t>(data, offset);
    case DType::boolean:
      return element<std::uint8_t>(data, offset) != 0;
    default:
      return static_cast<std::int64_t>(load(data, dtype, offset));
  }
}

void store(void* data, DType dtype, std::int64_t offset, double value) {
  switch (dtype) {
    case DType::f64:
      return set_element(data, offset, value);
    case DType::f32:
      return set_element(data, offset, static_cast<float>(value));
    case DType::bf16:
      return set_element(data, offset, float_to_bf16(round_to_odd(value)));
    case DType::f16:
      return set_element(data, offset, float_to_f16(round_to_odd(value)));
    case DType::i64:
      return set_element(data, offset, static_cast<std::int64_t>(value));
    case DType::i32:
      return set_element(data, offset, static_cast<std::int32_t>(value));
    case DType::i16:
      return set_element(data, offset, static_cast<std::int16_t>(value));
    case DType::i8:
      return set_element(data, offset, static_cast<std::int8_t>(value));
    case DType::u8:
      return set_element(data, offset, static_cast<std::uint8_t>(value));
    case DType::boolean:
      return set_element(data, offset, static_cast<std::uint8_t>(value != 0));
  }
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f32:
      return static_cast<float>(value);
    case DType::bf16:
      return bf16_to_float(float_to_bf16(round_to_odd(value)));
    case DType::f16:
      return f16_to_float(float_to_f16(round_to_odd(value)));
    default:
      return value;
  }
}

}  // namespace base
}  // namespace foveal
