#include "foveal/error.h"

namespace foveal {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok:
      return "ok";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::compile_failed:
      return "compile_failed";
    case ErrorCode::device:
      return "device";
    case ErrorCode::communication:
      return "communication";
  }
  return "unknown";
}

}  // namespace foveal
