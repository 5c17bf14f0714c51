#pragma once
// Element types, and access to single elements of any type: for the reference, checks and files, not for kernels.
#include <cstdint>
#include <optional>
#include <string_view>

#include "foveal/tensor.h"

namespace foveal::base {

/// "f32" -> DType::f32
std::optional<DType> parse_dtype(std::string_view name);

bool is_integral(DType dtype);

/// Distance from 1 to the next number of a floating type.
double epsilon(DType dtype);

/// Element `offset` (in elements) of memory of a type, as a double. Booleans read as 0 or 1.
double load(const void* data, DType dtype, std::int64_t offset);
std::int64_t load_integer(const void* data, DType dtype, std::int64_t offset);

/// Rounds once to the type (to nearest even); integers truncate.
void store(void* data, DType dtype, std::int64_t offset, double value);

/// `value` rounded to a floating type.
double round_to(DType dtype, double value);

}  // namespace foveal::base
