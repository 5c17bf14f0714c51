#pragma once
// Training on several MPI processes that share each sequence: every process holds some tokens of all sequences and the whole of the
// weights.
#include <foveal/dist.h>

#include <memory>
#include <vector>

#include "data.h"

namespace gpt {

class Ranks {
 public:
  /// One process.
  Ranks() = default;
  /// Throws when the context is no multiple of twice their number: all hold as many tokens then.
  Ranks(std::shared_ptr<foveal::dist::Transport> transport, std::int64_t context);

  int rank() const { return transport_ ? transport_->rank() : 0; }
  int size() const { return transport_ ? transport_->size() : 1; }
  const std::shared_ptr<foveal::dist::Transport>& transport() const { return transport_; }
  /// Tokens of a chunk: two of them make a rank's share, which is even for a causal mask.
  std::int64_t unit(std::int64_t context) const { return context / (2 * size()); }

  /// This process's tokens of each sequence of a batch.
  Batch shard(const Batch& batch, std::int64_t context) const;
  /// The means over all processes, in the order of ranks: the same bits on each.
  void mean(std::vector<float>& values) const;
  double mean(double value) const;

 private:
  std::shared_ptr<foveal::dist::Transport> transport_;
};

}  // namespace gpt
