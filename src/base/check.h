#pragma once
// FOVEAL_CHECK(condition, "q: rank ", found, "; expected 4"): throws invalid_argument with the pieces joined.
#include <sstream>
#include <string>

#include "foveal/error.h"

namespace foveal::base {

template <class... Pieces>
std::string join(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}

template <class... Pieces>
[[noreturn]] void fail(ErrorCode code, const Pieces&... pieces) {
  throw Error(code, join(pieces...));
}

}  // namespace foveal::base

#define FOVEAL_CHECK(condition, ...)                                                            \
  do {                                                                                          \
    if (!(condition)) ::foveal::base::fail(::foveal::ErrorCode::invalid_argument, __VA_ARGS__); \
  } while (false)
