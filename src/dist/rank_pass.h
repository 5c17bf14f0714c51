#pragma once
// Rows of one rank's pass, in host or device memory: gathered as the plan says, and results returned to their owners.
#include <utility>
#include <vector>

#include "dist/context.h"

namespace foveal::dist {

/// A tensor that is gathered or returned: this rank's shard, and the buffer that it computes in.
struct Role {
  Rows shard, buffer;
  bool of_keys;  ///< or of queries: which heads a rank has
};

class RankPass {
 public:
  RankPass(const Context& context, RowMemory& memory) : c_(context), memory_(memory) {}

 protected:
  Range heads(bool of_keys, int rank) const { return of_keys ? c_.heads_kv(rank) : c_.heads_q(rank); }
  Range heads(bool of_keys) const { return heads(of_keys, c_.rank()); }

  /// Consecutive rows of one role's shard or buffer.
  struct Piece {
    Rows rows;
    std::size_t role;
    std::int64_t token;  ///< the first
  };
  /// From one peer. messages: where each piece arrives; no data: in its final place.
  struct Arrival {
    int peer = 0;
    std::vector<Piece> pieces;
    std::vector<Rows> messages;
  };

  struct Gather {
    std::uint64_t ticket = 0;
    std::vector<Arrival> arrivals;
  };
  /// Starts sending rows of this rank's shards and receiving rows of the others' into buffers; copies its own. in_slices: heads may arrive
  /// in groups, one after the other; the same on all ranks.
  Gather gather(const std::vector<Sending>& sendings, const std::vector<Transfer>& wanted, const std::vector<Role>& roles,
                bool in_slices = false);
  void finish(const Gather& gather);

  /// Rows of buffers on their way back to their owners' shards.
  struct Return {
    std::vector<std::uint64_t> tickets;
    std::vector<Arrival> arrivals;
  };
  /// `computed`: what this rank has for others; `owned`: what others have for it.
  Return send_back(const std::vector<Transfer>& computed, const std::vector<Sending>& owned, const std::vector<Role>& roles);
  /// The same in two calls, so that peers can send before this rank has computed: first the receives, then the sends.
  Return expect_back(const std::vector<Sending>& owned, const std::vector<Role>& roles);
  void send_back(const std::vector<Transfer>& computed, const std::vector<Role>& roles, Return& back);
  void wait(const Return& back) {
    for (const std::uint64_t ticket : back.tickets) memory_.wait(*c_.transport, ticket);
  }
  /// What arrived, into the shards: added or copied.
  void take_back(const Arrival& arrival, bool sum);
  /// What this rank computed for its own rows, likewise.
  void take_own(const std::vector<Transfer>& computed, const std::vector<Role>& roles, bool sum);
  /// Results of queries to the ranks that own these, and back: from buffers to shards.
  void return_queries(const std::vector<Role>& roles);

  using For = RowMemory::For;
  Rows query_rows(DType dtype, std::int64_t dim, For use = For::work) {
    return memory_.rows(dtype, c_.batch(), c_.mine.q_rows, heads(false).size(), dim, use);
  }
  Rows query_statistics(DType dtype, For use = For::work) {
    return memory_.statistics(dtype, c_.batch(), c_.mine.q_rows, heads(false).size(), use);
  }
  Rows key_rows(const Step& step, DType dtype, std::int64_t dim, For use = For::work) {
    return memory_.rows(dtype, c_.batch(), step.rows, heads(true).size(), dim, use);
  }

  /// The sink's logits of all heads; absent without a sink. Throws invalid_argument when they are not bound.
  TensorView sink_of(const std::vector<ParamBinding>& params) const;
  /// The sink joins once, when the launches are merged; none of them has it.
  Attention without_sink() const;

  /// Is each piece a message of its own, sent from where it lies to where it belongs? Else the
  /// pieces of a pair of ranks are packed into one.
  bool direct() const { return memory_.direct() && c_.plan.head_groups == 1 && c_.batch() == 1; }

  const Context& c_;
  RowMemory& memory_;

 private:
  std::vector<Piece> shard_pieces(const std::vector<Transfer>& transfers, const std::vector<Role>& roles, int sharer) const;
  std::vector<Piece> buffer_pieces(const std::vector<Transfer>& transfers, const std::vector<Role>& roles) const;
  std::byte* take_messages(const std::vector<Piece>& pieces, bool in_place, For use);
  /// Has the last messages, which are these pieces, come in slices.
  static void cut(std::vector<Message>& messages, const std::vector<Piece>& pieces);
  void send(int peer, const std::vector<Piece>& pieces, std::vector<Message>& sends);
  std::vector<Message> sends_of(const std::vector<Transfer>& computed, const std::vector<Role>& roles);
  std::vector<Arrival> arrivals_of(const std::vector<Sending>& owned, const std::vector<Role>& roles, std::vector<Message>& receives);
  Arrival receive(int peer, std::vector<Piece> pieces, bool in_place, std::vector<Message>& receives);
  void put(const Rows& from, const Rows& to, bool sum) { sum ? memory_.add(from, to) : memory_.copy(from, to); }
};

}  // namespace foveal::dist
