#include "score/index_forms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "score/bounds.h"

namespace foveal::scoring {
namespace {

constexpr double most_reach = 1 << 30;  // of a sum

}  // namespace

IndexForms::IndexForms(const Program& program, const std::vector<ParamInfo>& params, base::IdVector<Interval> bounds)
    : program_(program),
      params_(params),
      bounds_(std::move(bounds)),
      linear_(linear_forms(program)),
      q_(program.symbol(Op::q_idx)),
      kv_(program.symbol(Op::kv_idx)) {}

bool IndexForms::is_wide(ValueId id) const { return program_[id].type == Type::integer && !fits_32_bits(bounds_[id]); }

const Linear* IndexForms::sum_of(ValueId id) const {
  constexpr std::int64_t most_factor = 1 << 20, most_constant = 1 << 30;
  const Linear& sum = linear_[id];
  if (program_[id].type != Type::integer || is_wide(id) || std::abs(sum.constant) >= most_constant) return nullptr;
  const auto fits = [&](const Linear::Term& term) { return std::abs(term.coefficient) <= most_factor && !is_wide(term.atom); };
  return std::ranges::all_of(sum.terms, fits) ? &sum : nullptr;
}

const Linear* IndexForms::sum_of_places(ValueId id) const {
  const Interval& bounds = bounds_[id];
  const Linear* const sum = sum_of(id);
  if (sum == nullptr || !(bounds.low >= -most_reach && bounds.high <= most_reach)) return nullptr;
  return of_q(*sum) != 0 || of_kv(*sum) != 0 ? sum : nullptr;
}

const Linear* IndexForms::sum_of_lines(ValueId id) const {
  const Linear* const sum = sum_of(id);
  if (sum == nullptr) return nullptr;
  double reach = std::abs(static_cast<double>(sum->constant));
  bool of_places = true, row = false, column = false;
  for (const auto& [atom, factor] : sum->terms) {
    const Varies over = varies(program_, atom);
    if (over == Varies::diagonal || over == Varies::pair) return nullptr;
    of_places = of_places && (over == Varies::uniform || is_place(atom));
    (over == Varies::column ? column : row) = true;
    reach += std::abs(static_cast<double>(factor)) * std::max(std::abs(bounds_[atom].low), std::abs(bounds_[atom].high));
  }
  return !of_places && row && column && reach <= most_reach ? sum : nullptr;
}

bool IndexForms::is_of_places(const Linear& sum) const {
  return std::ranges::all_of(sum.terms, [&](const Linear::Term& term) { return is_place(term.atom) || is_uniform(term.atom); });
}

bool IndexForms::steps_with(ValueId index, Op position) const {
  const Linear* const sum = sum_of(index);
  return sum != nullptr && sum->of(position == Op::q_idx ? q_ : kv_) != 0 && is_of_places(*sum);
}

bool IndexForms::append_blocks(ValueId id, std::int64_t& divided, std::vector<std::int64_t>& blocks) const {
  const Instr& instr = program_[id];
  if (instr.op == Op::kv_idx) {
    divided = 1;
    return true;
  }
  if ((instr.op != Op::floor_div && instr.op != Op::mod) || program_[instr.arg[1]].op != Op::integer_const) return false;
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t by = program_[instr.arg[1]].integer;
  if (!append_blocks(instr.arg[0], divided, blocks) || by <= 0 || by > most / divided || by * divided % 8 != 0) return false;
  blocks.push_back(by * divided);
  if (instr.op == Op::floor_div) divided *= by;
  return true;
}

std::optional<std::vector<std::int64_t>> IndexForms::column_blocks(ValueId id) const {
  const Linear* const sum = sum_of(id);
  if (sum == nullptr) return {};
  bool any = false;
  std::vector<std::int64_t> blocks;
  for (const Linear::Term& term : sum->terms) {
    if (varies(program_, term.atom) != Varies::column) continue;
    std::int64_t divided = 1;
    if (!append_blocks(term.atom, divided, blocks)) return {};
    any = true;
  }
  return any ? std::optional(blocks) : std::nullopt;
}

std::int64_t IndexForms::size(const Address& read, std::size_t dimension) const {
  return params_[static_cast<std::size_t>(read.param)].shape[dimension];
}

bool IndexForms::is_inside(const Address& read, std::size_t dimension) const {
  return scoring::is_inside(bounds_[read.index[dimension]], size(read, dimension));
}

bool IndexForms::is_inside(const Address& read) const {
  for (std::size_t d = 0; d < read.index.size(); ++d)
    if (!is_inside(read, d)) return false;
  return true;
}

bool IndexForms::is_element_of_lines(const Address& read) const {
  bool row = false, column = false;
  for (std::size_t d = 0; d < read.index.size(); ++d) {
    const Varies over = varies(program_, read.index[d]);
    if (over == Varies::uniform) continue;
    const bool of_both = over == Varies::diagonal || over == Varies::pair;
    if (of_both && (!is_inside(read, d) || sum_of_lines(read.index[d]) == nullptr)) return false;
    row = row || over == Varies::row || of_both;
    column = column || over == Varies::column || of_both;
  }
  return row && column;
}

std::vector<Op> IndexForms::own_positions(const Address& read) const {
  std::vector<Op> own;
  const auto has = [&](Op position) { return std::ranges::find(own, position) != own.end(); };
  for (std::size_t d = 0; d < read.index.size(); ++d) {
    const Op op = program_[read.index[d]].op;
    const bool position = op == Op::batch || op == Op::head || op == Op::q_idx || op == Op::kv_idx;
    if (position && is_inside(read, d) && !has(op)) own.push_back(op);
  }
  for (std::size_t d = 0; d < read.index.size(); ++d) {
    for (const Op position : {Op::q_idx, Op::kv_idx}) {
      if (has(position) || !is_inside(read, d) || !steps_with(read.index[d], position)) continue;
      own.push_back(position);
      return own;  // a second one might cancel it
    }
  }
  return own;
}

bool IndexForms::separates(Op position, const std::vector<Address>& reads) const {
  const std::vector<ValueId>& first = reads.front().index;
  for (std::size_t d = 0; d < first.size(); ++d) {
    const Linear* const sum = sum_of(first[d]);
    const bool shifted =
        sum != nullptr && sum->terms.size() == 1 && sum->terms[0].coefficient == 1 && program_[sum->terms[0].atom].op == position;
    const auto same = [&](const Address& read) { return read.index[d] == first[d]; };
    if (shifted && is_inside(reads.front(), d) && std::ranges::all_of(reads, same)) return true;
  }
  return false;
}

bool IndexForms::covers(const Address& read) const {
  unsigned seen = 0;
  for (std::size_t d = 0; d < read.index.size(); ++d) {
    const Interval& bounds = bounds_[read.index[d]];
    const unsigned depends = program_.depends_of(read.index[d]);
    const bool all = bounds.low == 0 && bounds.high == static_cast<double>(size(read, d) - 1);
    if (!all || (depends & seen) != 0) return false;
    seen |= depends;
  }
  return true;
}

std::int64_t IndexForms::elements(const Address& read) const {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < read.index.size(); ++d)
    if (!is_uniform(read.index[d])) elements = std::min(most, elements * size(read, d));
  return elements;
}

}  // namespace foveal::scoring
