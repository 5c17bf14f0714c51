#include "dist/pass.h"

#include "base/check.h"
#include "base/dtype.h"

namespace foveal::dist {
namespace {

std::vector<Transfer> from(const std::vector<Transfer>& transfers, int source) {
  std::vector<Transfer> some;
  for (const Transfer& t : transfers)
    if (t.source == source) some.push_back(t);
  return some;
}

}  // namespace

std::vector<Pass::Piece> Pass::pieces(const std::vector<Transfer>& transfers, const std::vector<Role>& roles, bool of_shard,
                                      int sharer) const {
  std::vector<Piece> all;
  for (const Transfer& t : transfers)
    for (const Role& role : roles) {
      const Range share = heads(role.of_keys, sharer);
      if (of_shard) {
        all.push_back({role.shard, t.place, share.begin, t.tokens.size(), share.size()});
      } else {
        all.push_back({role.buffer, t.row, 0, t.tokens.size(), share.size()});
      }
    }
  return all;
}

void Pass::send(int peer, const std::vector<Piece>& pieces, std::vector<Message>& sends) {
  std::int64_t size = 0;
  for (const Piece& piece : pieces)
    if (!direct() || !is_dense(piece.rows)) size += piece.count * piece.rows.token_bytes(piece.heads);
  std::byte* memory = size > 0 || !direct() ? memory_.take(static_cast<std::size_t>(size)) : nullptr;
  std::byte* at = memory;
  for (const Piece& piece : pieces) {
    const std::int64_t bytes = piece.count * piece.rows.token_bytes(piece.heads);
    if (direct() && is_dense(piece.rows)) {
      sends.push_back({peer, piece.rows.at(0, piece.token, 0), static_cast<std::size_t>(bytes)});
      continue;
    }
    const Rows to = in_message(at, piece.rows, piece.count, piece.heads);
    memory_.copy(piece.rows, piece.token, piece.head, to, 0, 0, piece.count, piece.heads);
    if (direct()) sends.push_back({peer, at, static_cast<std::size_t>(bytes)});
    at += bytes;
  }
  if (!direct()) sends.push_back({peer, memory, static_cast<std::size_t>(size)});
}

Pass::Arrival Pass::receive(int peer, std::vector<Piece> pieces, bool in_place, std::vector<Message>& receives) {
  const auto arrives_there = [&](const Piece& piece) { return in_place && direct() && is_dense(piece.rows); };
  Arrival arrival{peer, std::move(pieces), {}};
  std::int64_t size = 0;
  for (const Piece& piece : arrival.pieces)
    if (!arrives_there(piece)) size += piece.count * piece.rows.token_bytes(piece.heads);
  std::byte* memory = size > 0 || !direct() ? memory_.take(static_cast<std::size_t>(size)) : nullptr;
  std::byte* at = memory;
  for (const Piece& piece : arrival.pieces) {
    const std::int64_t bytes = piece.count * piece.rows.token_bytes(piece.heads);
    if (arrives_there(piece)) {
      receives.push_back({peer, piece.rows.at(0, piece.token, 0), static_cast<std::size_t>(bytes)});
      arrival.messages.emplace_back();
      continue;
    }
    arrival.messages.push_back({in_message(at, piece.rows, piece.count, piece.heads), 0, 0, piece.count, piece.heads});
    if (direct()) receives.push_back({peer, at, static_cast<std::size_t>(bytes)});
    at += bytes;
  }
  if (!direct()) receives.push_back({peer, memory, static_cast<std::size_t>(size)});
  return arrival;
}

Pass::Gather Pass::gather(const std::vector<Sending>& sendings, const std::vector<Transfer>& wanted, const std::vector<Role>& roles) {
  std::vector<Message> sends, receives;
  Gather gather;
  for (const Sending& sending : sendings) send(sending.target, pieces(sending.rows, roles, true, sending.target), sends);
  for (int source = 0; source < c_.plan.ranks; ++source) {
    const std::vector<Transfer> rows = from(wanted, source);
    if (rows.empty() || source == c_.rank()) continue;
    gather.arrivals.push_back(receive(source, pieces(rows, roles, false, c_.rank()), true, receives));
  }
  gather.ticket = memory_.start(*c_.transport, sends, receives);
  const std::vector<Transfer> own = from(wanted, c_.rank());
  const std::vector<Piece> there = pieces(own, roles, true, c_.rank()), here = pieces(own, roles, false, c_.rank());
  for (std::size_t i = 0; i < own.size() * roles.size(); ++i)
    memory_.copy(there[i].rows, there[i].token, there[i].head, here[i].rows, here[i].token, 0, here[i].count, here[i].heads);
  return gather;
}

void Pass::finish(const Gather& gather) {
  memory_.wait(*c_.transport, gather.ticket);
  for (const Arrival& arrival : gather.arrivals)
    for (std::size_t i = 0; i < arrival.pieces.size(); ++i) {
      const Piece &piece = arrival.pieces[i], &message = arrival.messages[i];
      if (message.rows.data != nullptr) memory_.copy(message.rows, 0, 0, piece.rows, piece.token, piece.head, piece.count, piece.heads);
    }
}

std::vector<Message> Pass::sends_of(const std::vector<Transfer>& computed, const std::vector<Role>& roles) {
  std::vector<Message> sends;
  for (int source = 0; source < c_.plan.ranks; ++source) {
    const std::vector<Transfer> rows = from(computed, source);
    if (rows.empty() || source == c_.rank()) continue;
    send(source, pieces(rows, roles, false, c_.rank()), sends);
  }
  return sends;
}

std::vector<Pass::Arrival> Pass::arrivals_of(const std::vector<Sending>& owned, const std::vector<Role>& roles,
                                             std::vector<Message>& receives) {
  std::vector<Arrival> arrivals;
  for (const Sending& sending : owned) {
    Arrival arrival = receive(sending.target, pieces(sending.rows, roles, false, sending.target), false, receives);
    arrival.pieces = pieces(sending.rows, roles, true, sending.target);
    arrivals.push_back(std::move(arrival));
  }
  return arrivals;
}

Pass::Return Pass::send_back(const std::vector<Transfer>& computed, const std::vector<Sending>& owned, const std::vector<Role>& roles) {
  Return back;
  const std::vector<Message> sends = sends_of(computed, roles);
  std::vector<Message> receives;
  back.arrivals = arrivals_of(owned, roles, receives);
  back.tickets.push_back(memory_.start(*c_.transport, sends, receives));
  return back;
}

Pass::Return Pass::expect_back(const std::vector<Sending>& owned, const std::vector<Role>& roles) {
  Return back;
  std::vector<Message> receives;
  back.arrivals = arrivals_of(owned, roles, receives);
  back.tickets.push_back(memory_.start(*c_.transport, {}, receives));
  return back;
}

void Pass::send_back(const std::vector<Transfer>& computed, const std::vector<Role>& roles, Return& back) {
  back.tickets.push_back(memory_.start(*c_.transport, sends_of(computed, roles), {}));
}

void Pass::take_back(const Arrival& arrival, bool sum) {
  for (std::size_t i = 0; i < arrival.pieces.size(); ++i) {
    const Piece &piece = arrival.pieces[i], &message = arrival.messages[i];
    if (sum) {
      memory_.add(message.rows, 0, 0, piece.rows, piece.token, piece.head, piece.count, piece.heads);
    } else {
      memory_.convert(message.rows, 0, 0, piece.rows, piece.token, piece.head, piece.count, piece.heads);
    }
  }
}

void Pass::take_own(const std::vector<Transfer>& computed, const std::vector<Role>& roles, bool sum) {
  const std::vector<Transfer> own = from(computed, c_.rank());
  const std::vector<Piece> here = pieces(own, roles, false, c_.rank()), there = pieces(own, roles, true, c_.rank());
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (sum) {
      memory_.add(here[i].rows, here[i].token, 0, there[i].rows, there[i].token, there[i].head, here[i].count, here[i].heads);
    } else {
      memory_.convert(here[i].rows, here[i].token, 0, there[i].rows, there[i].token, there[i].head, here[i].count, here[i].heads);
    }
  }
}

TensorView Pass::sink_of(const std::vector<ParamBinding>& params) const {
  if (!c_.attention.sink) return {};
  for (const ParamBinding& p : params)
    if (p.param.present() && is_sink(p)) return p.tensor;
  base::fail(ErrorCode::invalid_argument, "sink: parameter ", c_.attention.sink->name(), " is not bound in params");
}

Attention Pass::without_sink() const {
  Attention attention = c_.attention;
  attention.sink.reset();
  return attention;
}

}  // namespace foveal::dist
