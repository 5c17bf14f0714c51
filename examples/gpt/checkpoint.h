#pragma once
// The complete state of a run in one file, for bitwise resumption.
#include <cstdint>
#include <string>
#include <vector>

#include "adam.h"
#include "model.h"
#include "tokenizer.h"

namespace gpt {

/// One row of the loss curve; `validation` is NaN where it was not measured.
struct Progress {
  std::int64_t step;
  double training, validation;
};

struct Checkpoint {
  Config config;
  std::uint64_t seed = 0;
  std::int64_t step = 0;  ///< updates done
  std::vector<Tokenizer::Merge> merges;
  std::vector<Progress> history;
  std::vector<float> parameters, mean, square;
};

/// Written beside the path and renamed, so that a checkpoint is whole or not there.
void save(const Checkpoint& checkpoint, const std::string& path);
/// Throws when the file is missing, is no checkpoint, or ends early.
Checkpoint load_checkpoint(const std::string& path);

}  // namespace gpt
