#pragma once
// What one attention layer costs at a long context: speed and peak memory, each measured in a process of its own.
#include <cstdint>
#include <string>

#include "attention.h"

namespace gpt {

struct AttentionCost {
  double tokens_per_second = 0;  ///< forward and backward
  std::int64_t peak_bytes = 0;   ///< resident memory beyond what the process had before
};

/// Measures in this process; meaningful only once, in a fresh one.
AttentionCost measure_attention(AttentionKind kind, const AttentionShape& shape);
/// Starts this program again as `gpt --measure KIND ...` and reads what it prints.
AttentionCost measure_attention_apart(AttentionKind kind, const AttentionShape& shape);
/// The line that such a process prints.
std::string to_line(const AttentionCost& cost);

}  // namespace gpt
