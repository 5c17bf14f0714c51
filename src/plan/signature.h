#pragma once
// A call's signature: everything a plan depends on as raw bytes, with expressions and parameters by identity. Cheap to make, so that a
// repeated call finds its plan without being checked and compiled again. A plan keeps its expressions and parameters alive: while it is
// cached under a signature no other object can have their addresses.
#include <string>
#include <type_traits>

#include "problem/call.h"

namespace foveal::planning {

/// Written into `out`, whose memory is reused.
class Signature {
 public:
  explicit Signature(std::string& out) : out_(out) { out_.clear(); }

  template <class T>
  requires std::is_scalar_v<T>
  void add(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));  // NOLINT(bugprone-sizeof-expression): of a pointer too
  }
  void add(const std::string& text);
  /// What it looks like to a plan; absent ones too.
  void add(const TensorView& view);
  void add(const PlanOptions& options);

 private:
  std::string& out_;
};

void write_signature(const Attention& attention, const problem::Call& call, const PlanOptions& options, std::string& out);

}  // namespace foveal::planning
