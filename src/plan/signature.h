#pragma once
// A call's signature: everything a plan depends on as raw bytes, with expressions and parameters by identity. Cheap to make, so that a
// repeated call finds its plan without being checked and compiled again. A plan keeps its expressions and parameters alive: while it is
// cached under a signature no other object can have their addresses.
#include <string>

#include "problem/call.h"

namespace foveal::planning {

/// Written into `out`, whose memory is reused.
void write_signature(const Attention& attention, const problem::Call& call, const PlanOptions& options, std::string& out);

/// The part of options that a plan depends on, as text.
std::string options_key(const PlanOptions& options);

}  // namespace foveal::planning
