#pragma once
// How messages name an argument. Calls that succeed build no strings for it.

namespace foveal::base {

struct Named {
  const char* name;
  const char* what = "";  ///< stands before the name
};

inline Named gradient_of(const char* param) { return {param, "gradient of "}; }

}  // namespace foveal::base
