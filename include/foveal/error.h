#pragma once
// Every failure is a foveal::Error: a code, and a message that names the argument, what was found and what is accepted; but where memory of
// the host runs out, it is std::bad_alloc. The library never prints and never exits.
#include <stdexcept>
#include <string>

#include "foveal/export.h"

namespace foveal {

enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,  ///< a wrong call: a shape, dtype, stride, name or value
  unsupported = 2,       ///< a valid call that no backend supports; the message lists every refusal
  compile_failed = 3,    ///< run-time compilation of a GPU kernel failed; the message includes the compiler's log
  device = 4,            ///< an error of the driver or the device, or memory for a workspace ran out
  communication = 5,     ///< communication between ranks failed
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
