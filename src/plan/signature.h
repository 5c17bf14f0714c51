#pragma once
// A call's signature: everything that a plan depends on, as raw bytes, with expressions and parameters by address. It is cheap to make, so
// a repeated call finds its plan without being checked and compiled again. A cached plan keeps its expressions and parameters alive, so
// their addresses are not reused.
#include <string>
#include <type_traits>

#include "problem/call.h"

namespace foveal::planning {

/// Writes to `out`, whose memory is reused.
class Signature {
 public:
  explicit Signature(std::string& out) : out_(out) { out_.clear(); }

  /// Scalars, strings, tensors (what plans see of them; absent ones too) and PlanOptions.
  template <class... Values>
  void add(const Values&... values) {
    (append(values), ...);
  }

 private:
  template <class T>
  requires std::is_scalar_v<T>
  void append(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));  // NOLINT(bugprone-sizeof-expression): pointers are meant
  }
  void append(const std::string& text);
  void append(const TensorView& view);
  void append(const PlanOptions& options);

  std::string& out_;
};

void write_signature(const Attention& attention, const problem::Call& call, const PlanOptions& options, std::string& out);

}  // namespace foveal::planning
