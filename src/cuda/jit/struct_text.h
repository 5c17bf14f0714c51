#pragma once
// Structs of device/ as its text: those that list their `fields` are filled here and read by kernels.
#include <string>

#include "base/check.h"

namespace foveal::cuda::jit {

// Of an enum: a function value_text in its namespace.
inline std::string value_text(bool value) { return value ? "true" : "false"; }
inline std::string value_text(int value) { return std::to_string(value); }

/// `{.param = 1, .repeats = true}`
template <class Struct>
std::string struct_text(const Struct& value) {
  std::string text;
  Struct::fields(
      value, [&](const char* name, const auto& field) { text += base::join(text.empty() ? "{." : ", .", name, " = ", value_text(field)); });
  return text + "}";
}

}  // namespace foveal::cuda::jit
