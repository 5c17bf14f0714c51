// Compiles the score and mask of a problem, and checks their bounds.
#include <algorithm>
#include <optional>

#include "problem/checks.h"
#include "score/bounds.h"
#include "score/negative_index.h"

namespace foveal::problem {
namespace {

bool reads(const scoring::Program& program, int param) {
  return std::any_of(program.code.begin(), program.code.end(),
                     [param](const scoring::Instr& instr) { return instr.op == scoring::Op::read && instr.param == param; });
}

/// The box of all pairs; none if the lengths are known only at run time.
std::optional<scoring::Box> box_of(const Problem& p) {
  const auto range = [](std::int64_t low, std::int64_t high) {
    return scoring::Interval{static_cast<double>(low), static_cast<double>(high)};
  };
  const auto length = [&](std::int64_t seqlen, bool ragged) { return range(ragged ? 0 : seqlen, seqlen); };
  if (p.batch == 0 || p.seqlen_q == 0 || p.seqlen_kv == 0) return {};
  scoring::Box box{range(0, p.sequences - 1),    range(0, p.heads_q - 1),           {}, {},
                   length(p.seqlen_q, p.varlen), length(p.seqlen_kv, p.ragged_kv())};
  box.q_idx = range(p.first_position_q(), p.first_position_q() + p.positions_q() - 1);
  box.kv_idx = range(p.first_position_kv(), p.first_position_kv() + p.positions_kv() - 1);
  return box;
}

/// Refuses what is wrong whatever the data: a read that is out of range at every pair, integers that overflow 64 bits.
void check_bounds(const Problem& p, const scoring::Box& box, const char* what, const scoring::Program& program,
                  const scoring::Program& mask) {
  if (program.empty()) return;
  const scoring::ReadRanges unknown_data;
  for (const scoring::IndexCheck& check : scoring::check_reads(program, p.score->params, box, unknown_data, mask)) {
    FOVEAL_CHECK(check.verdict != scoring::IndexVerdict::never_inside, what, ": parameter ",
                 p.score->params[static_cast<std::size_t>(check.param)].name, ": index ", check.dimension, " is ", check.index.low, " to ",
                 check.index.high, ", outside at every pair; expected 0 to ", check.size - 1);
  }
  const std::optional<scoring::Interval> overflow = scoring::beyond_64_bits(program, scoring::evaluate(program, box, unknown_data));
  FOVEAL_CHECK(!overflow, what, ": an integer reaches from ", overflow->low, " to ", overflow->high,
               "; expected integers of 64 bits (compute it in reals with to_real)");
}

}  // namespace

void compile_score(Problem& p) {
  scoring::Request request{.score_mod = p.attention.score_mod, .mask = p.attention.mask, .params = {}, .wants_gradient = {}};
  request.backward = p.pass == Pass::backward;
  request.row_constant_terms_matter = p.sink >= 0 || p.dlse.present;
  for (std::size_t i = 0; i < p.params.size(); ++i) {
    request.params.push_back(p.params[i].param);
    request.wants_gradient.push_back(p.params[i].gradient.present && static_cast<int>(i) != p.sink);
  }
  const std::optional<scoring::Box> box = box_of(p);
  if (box && !p.segments) {
    request.score_mod = scoring::simplify_indices(request.score_mod, request.mask, request.params, *box);
    request.mask = scoring::simplify_indices(request.mask, {}, request.params, *box);
  }
  p.score = scoring::compile_once(request);
  if (p.sink >= 0 && p.params[static_cast<std::size_t>(p.sink)].gradient.present)
    FOVEAL_CHECK(!reads(p.score->forward, p.sink), "sink: parameter ", p.attention.sink->name(),
                 " is read by score_mod too and its gradient is wanted; use two parameters");
  if (!box) return;
  check_bounds(p, *box, "score_mod", p.score->forward, p.score->mask);
  check_bounds(p, *box, "mask", p.score->mask, {});
}

}  // namespace foveal::problem
