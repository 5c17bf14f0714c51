#pragma once
// A call's signature: everything that a plan depends on, as raw bytes, with expressions and parameters by address. It is cheap to make, so
// a repeated call finds its plan without being checked and compiled again. A cached plan keeps its expressions and parameters alive, so
// their addresses are not reused.
#include <string>

#include "base/key_bytes.h"
#include "problem/call.h"

namespace foveal::planning {

/// Writes to `out`, whose memory is reused.
class Signature {
 public:
  explicit Signature(std::string& out) : bytes_(out) {}

  /// Scalars, strings, tensors (what plans see of them; absent ones too) and PlanOptions.
  template <class... Values>
  void add(const Values&... values) {
    (append(values), ...);
  }

 private:
  template <class T>
  void append(const T& value) {
    bytes_.append(value);
  }
  void append(const TensorView& view);
  void append(const PlanOptions& options);

  base::KeyBytes bytes_;
};

void write_signature(const Attention& attention, const problem::Call& call, const PlanOptions& options, std::string& out);

}  // namespace foveal::planning
