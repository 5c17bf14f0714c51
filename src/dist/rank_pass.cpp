#include "dist/rank_pass.h"

#include <algorithm>

#include "base/check.h"

namespace foveal::dist {
namespace {

std::vector<Transfer> from(const std::vector<Transfer>& transfers, int source) {
  std::vector<Transfer> some;
  for (const Transfer& t : transfers)
    if (t.source == source) some.push_back(t);
  return some;
}

}  // namespace

std::vector<RankPass::Piece> RankPass::shard_pieces(const std::vector<Transfer>& transfers, const std::vector<Role>& roles,
                                                    int sharer) const {
  std::vector<Piece> pieces;
  for (const Transfer& t : transfers)
    for (std::size_t i = 0; i < roles.size(); ++i)
      pieces.push_back({roles[i].shard.slice({t.place, t.place + t.tokens.size()}, heads(roles[i].of_keys, sharer)), i, t.place});
  return pieces;
}

std::vector<RankPass::Piece> RankPass::buffer_pieces(const std::vector<Transfer>& transfers, const std::vector<Role>& roles) const {
  std::vector<Piece> pieces;
  for (const Transfer& t : transfers)
    for (std::size_t i = 0; i < roles.size(); ++i) pieces.push_back({roles[i].buffer.slice({t.row, t.row + t.tokens.size()}), i, t.row});
  return pieces;
}

/// Memory for the pieces that do not travel in place.
std::byte* RankPass::take_messages(const std::vector<Piece>& pieces, bool in_place, For use) {
  std::int64_t size = 0;
  for (const Piece& piece : pieces)
    if (!in_place || !direct() || !is_dense(piece.rows)) size += piece.rows.bytes();
  return size > 0 || !direct() ? memory_.take(static_cast<std::size_t>(size), use) : nullptr;
}

void RankPass::send(int peer, const std::vector<Piece>& pieces, std::vector<Message>& sends) {
  std::byte* const memory = take_messages(pieces, true, For::work);
  std::byte* at = memory;
  for (const Piece& piece : pieces) {
    const auto bytes = static_cast<std::size_t>(piece.rows.bytes());
    if (direct() && is_dense(piece.rows)) {
      sends.push_back({peer, piece.rows.data, bytes});
      continue;
    }
    memory_.copy(piece.rows, contiguous_like(piece.rows, at));
    if (direct()) sends.push_back({peer, at, bytes});
    at += bytes;
  }
  if (!direct()) sends.push_back({peer, memory, static_cast<std::size_t>(at - memory)});
}

RankPass::Arrival RankPass::receive(int peer, std::vector<Piece> pieces, bool in_place, std::vector<Message>& receives) {
  Arrival arrival{peer, std::move(pieces), {}};
  std::byte* const memory = take_messages(arrival.pieces, in_place, For::messages);
  std::byte* at = memory;
  for (const Piece& piece : arrival.pieces) {
    const auto bytes = static_cast<std::size_t>(piece.rows.bytes());
    if (in_place && direct() && is_dense(piece.rows)) {
      receives.push_back({peer, piece.rows.data, bytes});
      arrival.messages.emplace_back();
      continue;
    }
    arrival.messages.push_back(contiguous_like(piece.rows, at));
    if (direct()) receives.push_back({peer, at, bytes});
    at += bytes;
  }
  if (!direct()) receives.push_back({peer, memory, static_cast<std::size_t>(at - memory)});
  return arrival;
}

void RankPass::cut(std::vector<Message>& messages, const std::vector<Piece>& pieces) {
  const auto row_bytes = [](const Piece& piece) { return piece.rows.bytes() / piece.rows.tokens; };
  std::int64_t least_row = row_bytes(pieces.front()), bytes = 0;
  for (const Piece& piece : pieces) least_row = std::min(least_row, row_bytes(piece)), bytes += piece.rows.bytes();
  const std::int64_t heads = pieces.front().rows.heads;
  const std::int64_t slices = slices_of(heads, least_row, bytes / static_cast<std::int64_t>(pieces.size()));
  auto message = messages.end() - static_cast<std::ptrdiff_t>(pieces.size());
  for (const Piece& piece : pieces) {
    message->slices = static_cast<int>(slices);
    message->row_bytes = static_cast<std::size_t>(row_bytes(piece));
    message->first_slice_bytes = static_cast<std::size_t>(row_bytes(piece) / heads * (heads >> (slices - 1)));
    ++message;
  }
}

RankPass::Gather RankPass::gather(const std::vector<Sending>& sendings, const std::vector<Transfer>& wanted, const std::vector<Role>& roles,
                                  bool in_slices) {
  std::vector<Message> sends, receives;
  Gather gather;
  for (const Sending& sending : sendings) {
    const std::vector<Piece> pieces = shard_pieces(sending.rows, roles, sending.target);
    send(sending.target, pieces, sends);
    if (in_slices && direct()) cut(sends, pieces);
  }
  for (int source = 0; source < c_.plan.ranks; ++source) {
    const std::vector<Transfer> rows = from(wanted, source);
    if (rows.empty() || source == c_.rank()) continue;
    gather.arrivals.push_back(receive(source, buffer_pieces(rows, roles), true, receives));
    if (in_slices && direct()) cut(receives, gather.arrivals.back().pieces);
  }
  gather.ticket = memory_.start(*c_.transport, sends, receives);
  const std::vector<Transfer> own = from(wanted, c_.rank());
  const std::vector<Piece> there = shard_pieces(own, roles, c_.rank()), here = buffer_pieces(own, roles);
  for (std::size_t i = 0; i < here.size(); ++i) memory_.copy(there[i].rows, here[i].rows);
  return gather;
}

void RankPass::finish(const Gather& gather) {
  memory_.wait(*c_.transport, gather.ticket);
  for (const Arrival& arrival : gather.arrivals)
    for (std::size_t i = 0; i < arrival.pieces.size(); ++i)
      if (arrival.messages[i].data != nullptr) memory_.copy(arrival.messages[i], arrival.pieces[i].rows);
}

std::vector<Message> RankPass::sends_of(const std::vector<Transfer>& computed, const std::vector<Role>& roles) {
  std::vector<Message> sends;
  for (int source = 0; source < c_.plan.ranks; ++source) {
    const std::vector<Transfer> rows = from(computed, source);
    if (rows.empty() || source == c_.rank()) continue;
    send(source, buffer_pieces(rows, roles), sends);
  }
  return sends;
}

std::vector<RankPass::Arrival> RankPass::arrivals_of(const std::vector<Sending>& owned, const std::vector<Role>& roles,
                                                     std::vector<Message>& receives) {
  std::vector<Arrival> arrivals;
  arrivals.reserve(owned.size());
  for (const Sending& sending : owned)
    arrivals.push_back(receive(sending.target, shard_pieces(sending.rows, roles, sending.target), false, receives));
  return arrivals;
}

RankPass::Return RankPass::send_back(const std::vector<Transfer>& computed, const std::vector<Sending>& owned,
                                     const std::vector<Role>& roles) {
  const std::vector<Message> sends = sends_of(computed, roles);
  std::vector<Message> receives;
  Return back{{}, arrivals_of(owned, roles, receives)};
  back.tickets.push_back(memory_.start(*c_.transport, sends, receives));
  return back;
}

RankPass::Return RankPass::expect_back(const std::vector<Sending>& owned, const std::vector<Role>& roles) {
  std::vector<Message> receives;
  Return back{{}, arrivals_of(owned, roles, receives)};
  back.tickets.push_back(memory_.start(*c_.transport, {}, receives));
  return back;
}

void RankPass::send_back(const std::vector<Transfer>& computed, const std::vector<Role>& roles, Return& back) {
  back.tickets.push_back(memory_.start(*c_.transport, sends_of(computed, roles), {}));
}

void RankPass::take_back(const Arrival& arrival, bool sum) {
  for (std::size_t i = 0; i < arrival.pieces.size(); ++i) put(arrival.messages[i], arrival.pieces[i].rows, sum);
}

void RankPass::take_own(const std::vector<Transfer>& computed, const std::vector<Role>& roles, bool sum) {
  const std::vector<Transfer> own = from(computed, c_.rank());
  const std::vector<Piece> here = buffer_pieces(own, roles), there = shard_pieces(own, roles, c_.rank());
  for (std::size_t i = 0; i < here.size(); ++i) put(here[i].rows, there[i].rows, sum);
}

void RankPass::return_queries(const std::vector<Role>& roles) {
  const Return back = send_back(c_.mine.queries, c_.queries_to, roles);
  wait(back);
  take_own(c_.mine.queries, roles, false);
  for (const Arrival& arrival : back.arrivals) take_back(arrival, false);
}

TensorView RankPass::sink_of(const std::vector<ParamBinding>& params) const {
  if (!c_.attention.sink) return {};
  for (const ParamBinding& p : params)
    if (p.param.present() && c_.is_sink(p)) return p.tensor;
  base::fail(ErrorCode::invalid_argument, "sink: parameter ", c_.attention.sink->name(), " is not bound in params");
}

Attention RankPass::without_sink() const {
  Attention attention = c_.attention;
  attention.sink.reset();
  return attention;
}

}  // namespace foveal::dist
