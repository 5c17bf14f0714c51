// Compiles the score and mask of a problem, and checks their bounds.
#include <algorithm>

#include "problem/checks.h"
#include "score/bounds.h"
#include "score/negative_index.h"

namespace foveal::problem {
namespace {

bool reads(const scoring::Program& program, int param) {
  return std::any_of(program.code.begin(), program.code.end(),
                     [param](const scoring::Instr& instr) { return instr.op == scoring::Op::read && instr.param == param; });
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
  const auto overflow = scoring::beyond_64_bits(program, scoring::evaluate(program, box, unknown_data).span());
  FOVEAL_CHECK(!overflow, what, ": an integer reaches from ", overflow->low, " to ", overflow->high,
               "; expected integers of 64 bits (compute it in reals with to_real)");
}

}  // namespace

scoring::Box box_of(const Problem& p) {
  const auto range = [](std::int64_t low, std::int64_t high) {
    return scoring::Interval{static_cast<double>(low), static_cast<double>(high)};
  };
  const auto from = [&](std::int64_t first, std::int64_t count) { return range(first, first + std::max<std::int64_t>(count, 1) - 1); };
  constexpr std::int64_t most = std::int64_t{1} << 30;  // of segments, whose table says only in a run how long sequences are
  const auto length = [&](std::int64_t known, std::int64_t total) { return p.segments ? most : known == 0 && p.varlen ? total : known; };
  const std::int64_t seqlen_q = length(p.seqlen_q, p.total_q), seqlen_kv = length(p.seqlen_kv, p.total_kv);
  const std::int64_t first_q = p.first_position_q();
  scoring::Box box{.batch = from(0, p.sequences),
                   .head = from(p.segments ? p.head_offset : 0, p.heads_q),
                   .q_idx = from(first_q, length(p.positions_q(), p.total_q)),
                   .kv_idx = from(p.first_position_kv(), length(p.positions_kv(), p.total_kv)),
                   .seqlen_q = range(p.varlen ? 0 : seqlen_q, seqlen_q),
                   .seqlen_kv = range(p.ragged_kv() || p.any_length ? 0 : seqlen_kv, seqlen_kv)};
  if (p.any_length) box.q_idx.low = std::min(box.q_idx.low, 0.0);
  return box;
}

base::IdVector<scoring::Interval> bounds_of(const Problem& p, const scoring::Program& program) {
  std::vector<scoring::Interval> ranges;
  for (const ParamSpec& param : p.params) ranges.push_back(scoring::range_of(param.tensor.dtype));
  return scoring::evaluate(program, box_of(p), scoring::WholeRanges(ranges));
}

void compile_score(Problem& p) {
  scoring::Request request{.score_mod = p.attention.score_mod, .mask = p.attention.mask, .params = {}, .wants_gradient = {}};
  request.backward = p.pass == Pass::backward;
  request.row_constant_terms_matter = p.sink >= 0 || p.dlse.present;
  for (std::size_t i = 0; i < p.params.size(); ++i) {
    request.params.push_back(p.params[i].param);
    request.wants_gradient.push_back(p.params[i].gradient.present && static_cast<int>(i) != p.sink);
  }
  const bool lengths_known = p.batch > 0 && p.seqlen_q > 0 && p.seqlen_kv > 0;
  const scoring::Box box = box_of(p);
  if (lengths_known) {
    request.score_mod = scoring::simplify_indices(request.score_mod, request.mask, request.params, box);
    request.mask = scoring::simplify_indices(request.mask, {}, request.params, box);
  }
  p.score = scoring::compile_once(request);
  if (p.sink >= 0 && p.param(p.sink).gradient.present)
    FOVEAL_CHECK(!reads(p.score->forward, p.sink), "sink: parameter ", p.attention.sink->name(),
                 " is read by score_mod too and its gradient is wanted; use two parameters");
  if (!lengths_known) return;
  check_bounds(p, box, "score_mod", p.score->forward, p.score->mask);
  check_bounds(p, box, "mask", p.score->mask, {});
}

}  // namespace foveal::problem
