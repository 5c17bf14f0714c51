#pragma once
// Errors: every failure of foveal is a foveal::Error with a code and a message that names the argument,
// what was found and what would be accepted. The library never prints and never exits.
#include <stdexcept>
#include <string>

#include "foveal/export.h"

namespace foveal {

enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,  ///< the call is wrong: a shape, dtype, stride, name or value
  unsupported = 2,       ///< the call is right, but no backend can do it; the message lists every refusal
  compile_failed = 3,    ///< run-time compilation of a GPU kernel failed; the message carries the log
  device = 4,            ///< the driver or the device reported an error
  communication = 5,     ///< a transport between devices failed
};

FOVEAL_API const char* to_string(ErrorCode code);

class FOVEAL_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace foveal
