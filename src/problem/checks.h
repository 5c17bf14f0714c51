#pragma once
// The steps of make_problem() and what they share. Each reads one aspect of a call into the Problem and throws invalid_argument.
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "problem/call.h"

namespace foveal::problem {

constexpr std::int64_t max_position = std::numeric_limits<std::int32_t>::max(), most_elements = std::int64_t{1} << 48;

using base::shape_text;

TensorSpec spec_of(const TensorView& logical);
void check_dtype(const char* name, DType found, DType expected, const char* why);
inline void check_device(const char* name, const TensorView& view, const Call& call) {
  FOVEAL_CHECK(view.device == call.q->device, name, ": on another device than q");
}

// In the order in which they are called; forms.cpp:
void read_varlen(Problem& p, const Call& call);  ///< and segments
void read_paged(Problem& p, const Call& call);
void read_part(Problem& p, const Call& call);
// score.cpp:
void compile_score(Problem& p);

}  // namespace foveal::problem
