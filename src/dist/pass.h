#pragma once
// What the passes of one rank do with rows, wherever these lie: gather what the plan says, and return what others own.
#include <utility>
#include <vector>

#include "dist/context.h"

namespace foveal::dist {

/// A tensor that is gathered or returned, and which share of its heads a rank has.
struct Role {
  Rows shard, buffer;
  bool of_keys;
};

class Pass {
 public:
  Pass(const Context& context, RowMemory& memory) : c_(context), memory_(memory) {}

 protected:
  Range heads(bool of_keys, int rank) const { return of_keys ? c_.heads_kv(rank) : c_.heads_q(rank); }
  Range heads(bool of_keys) const { return heads(of_keys, c_.rank()); }

  /// Rows of one stretch of one tensor.
  struct Piece {
    Rows rows;
    std::int64_t token = 0, head = 0, count = 0, heads = 0;
  };
  /// What a peer sends: `messages` are pieces too, in memory of their own, or without data where a piece arrives in its place.
  struct Arrival {
    int peer = 0;
    std::vector<Piece> pieces, messages;
  };

  /// A gather under way: rows of shards into rows of buffers.
  struct Gather {
    std::uint64_t ticket = 0;
    std::vector<Arrival> arrivals;
  };
  /// Starts to send rows of this rank's shards, and to receive rows of others'; copies its own.
  Gather gather(const std::vector<Sending>& sendings, const std::vector<Transfer>& wanted, const std::vector<Role>& roles);
  void finish(const Gather& gather);

  /// Rows of buffers on their way back to their owners' shards.
  struct Return {
    std::vector<std::uint64_t> tickets;
    std::vector<Arrival> arrivals;
  };
  /// `computed`: what this rank has for others; `owned`: what others have for it.
  Return send_back(const std::vector<Transfer>& computed, const std::vector<Sending>& owned, const std::vector<Role>& roles);
  /// The same in two calls, of which others need not wait for the second: memory for what they send, and what is sent.
  Return expect_back(const std::vector<Sending>& owned, const std::vector<Role>& roles);
  void send_back(const std::vector<Transfer>& computed, const std::vector<Role>& roles, Return& back);
  void wait(const Return& back) {
    for (const std::uint64_t ticket : back.tickets) memory_.wait(*c_.transport, ticket);
  }
  /// What arrived into the shards: added, or converted.
  void take_back(const Arrival& arrival, bool sum);
  /// What this rank computed for its own rows, likewise.
  void take_own(const std::vector<Transfer>& computed, const std::vector<Role>& roles, bool sum);

  Rows query_rows(DType dtype, std::int64_t dim) { return memory_.rows(dtype, c_.batch(), c_.mine.q_rows, heads(false).size(), dim); }
  Rows key_rows(const Step& step, DType dtype, std::int64_t dim) {
    return memory_.rows(dtype, c_.batch(), step.rows, heads(true).size(), dim);
  }

  /// The sink's logits of the whole; absent without a sink. Throws invalid_argument when they are not bound.
  TensorView sink_of(const std::vector<ParamBinding>& params) const;
  bool is_sink(const ParamBinding& binding) const { return c_.attention.sink && binding.param.name() == c_.attention.sink->name(); }
  /// The description of a launch: the sink joins once, outside.
  Attention without_sink() const;

  /// Does each piece travel by itself, from where it lies and to where it belongs? Else the pieces of a pair of ranks make one message.
  bool direct() const { return memory_.direct() && c_.plan.head_groups == 1 && c_.batch() == 1; }

  const Context& c_;
  RowMemory& memory_;

 private:
  std::vector<Piece> pieces(const std::vector<Transfer>& transfers, const std::vector<Role>& roles, bool of_shard, int sharer) const;
  void send(int peer, const std::vector<Piece>& pieces, std::vector<Message>& sends);
  std::vector<Message> sends_of(const std::vector<Transfer>& computed, const std::vector<Role>& roles);
  std::vector<Arrival> arrivals_of(const std::vector<Sending>& owned, const std::vector<Role>& roles, std::vector<Message>& receives);
  Arrival receive(int peer, std::vector<Piece> pieces, bool in_place, std::vector<Message>& receives);
};

}  // namespace foveal::dist
