// Integers as sums of positions: what pairs of a thread share, and reads that TMA can load as tiles.
#include <algorithm>
#include <cmath>

#include "cuda/score/score_forms.h"
#include "score/bounds.h"

namespace foveal::cuda {

std::optional<PositionSum> ScoreForms::sum_of(ValueId id) const {
  constexpr std::int64_t most_factor = 1 << 20, most_constant = 1 << 30;
  const scoring::Linear& form = linear_[id];
  if (program_[id].type != Type::integer || is_wide(id) || std::abs(form.constant) >= most_constant) return {};
  PositionSum sum{.constant = form.constant};
  for (const auto& [atom, factor] : form.terms) {
    if (std::abs(factor) > most_factor || is_wide(atom)) return {};
    const Op op = program_[atom].op;
    if (op == Op::q_idx)
      sum.q = factor;
    else if (op == Op::kv_idx)
      sum.kv = factor;
    else
      sum.terms.emplace_back(atom, factor);
  }
  return sum;
}

std::optional<PositionSum> ScoreForms::sum_of_places(ValueId id) const {
  constexpr double limit = 1 << 30;
  const Interval& bounds = bounds_[id];
  const auto sum = sum_of(id);
  if (!sum || !(bounds.low >= -limit && bounds.high <= limit)) return {};
  if (sum->q == 0 && sum->kv == 0) return {};
  return sum;
}

std::optional<PositionSum> ScoreForms::sum_of_lines(ValueId id) const {
  constexpr double limit = 1 << 30;
  const auto sum = sum_of(id);
  if (!sum) return {};
  const scoring::Box box = problem::box_of(problem_);
  const auto size = [](const Interval& value) { return std::max(std::abs(value.low), std::abs(value.high)); };
  const auto reach_of = [](std::int64_t factor, double most) { return factor == 0 ? 0 : std::abs(static_cast<double>(factor)) * most; };
  double reach = std::abs(static_cast<double>(sum->constant)) + reach_of(sum->q, size(box.q_idx)) + reach_of(sum->kv, size(box.kv_idx));
  bool of_places = true, row = sum->q != 0, column = sum->kv != 0;
  for (const auto& [atom, factor] : sum->terms) {
    const Varies over = scoring::varies(program_, atom);
    if (over == Varies::diagonal || over == Varies::pair) return {};
    of_places = of_places && over == Varies::uniform;
    (over == Varies::column ? column : row) = true;
    reach += reach_of(factor, size(bounds_[atom]));
  }
  if (of_places || !row || !column || !(reach <= limit)) return {};
  return sum;
}

bool ScoreForms::append_blocks(ValueId id, std::int64_t& divided, std::vector<std::int64_t>& blocks) const {
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

std::optional<std::vector<std::int64_t>> ScoreForms::column_blocks(ValueId id) const {
  const auto sum = sum_of(id);
  if (problem_.attention.kv_offset != 0 || !sum) return {};
  bool any = sum->kv != 0;
  std::vector<std::int64_t> blocks;
  for (const auto& [atom, factor] : sum->terms) {
    if (scoring::varies(program_, atom) != Varies::column) continue;
    std::int64_t divided = 1;
    if (!append_blocks(atom, divided, blocks)) return {};
    any = true;
  }
  return any ? std::optional(blocks) : std::nullopt;
}

bool ScoreForms::is_element_of_lines(const Instr& read) const {
  bool row = false, column = false;
  for (std::size_t d = 0; d < read.index.size(); ++d) {
    const Varies over = scoring::varies(program_, read.index[d]);
    if (over == Varies::uniform) continue;
    const bool of_both = over == Varies::diagonal || over == Varies::pair;
    if (of_both && (!is_inside(read, d) || !sum_of_lines(read.index[d]))) return false;
    row = row || over == Varies::row || of_both;
    column = column || over == Varies::column || of_both;
  }
  return row && column;
}

bool ScoreForms::is_affine(ValueId value) const {
  const Product product = product_of(value);
  if (product.rest.size() != 1) return false;
  const Instr& rest = program_[product.rest[0]];
  if (rest.op != Op::to_real || !is_small_integer(rest.arg[0])) return false;
  const auto sum = sum_of(rest.arg[0]);
  return sum && std::all_of(sum->terms.begin(), sum->terms.end(), [&](const auto& term) { return is_uniform(term.first); });
}

bool ScoreForms::steps_with(ValueId index, Op position) const {
  const auto sum = sum_of(index);
  if (!sum || (position == Op::q_idx ? sum->q : sum->kv) == 0) return false;
  return std::all_of(sum->terms.begin(), sum->terms.end(), [&](const auto& term) { return is_uniform(term.first); });
}

bool ScoreForms::is_inside(const Instr& read, std::size_t dimension) const {
  return scoring::is_inside(bounds_[read.index[dimension]], problem_.param(read.param).param.shape()[dimension]);
}

std::int64_t ScoreForms::entries_of(const Instr& read, std::size_t dimension, bool padded) const {
  const std::int64_t size = problem_.param(read.param).param.shape()[dimension];
  return padded ? table_row_entries(problem_, read.index, dimension, size) : size;
}

std::optional<PairTile> ScoreForms::tile_of(ValueId id, TileUse use) const {
  const Instr& instr = program_[id];
  if (instr.op != Op::read || instr.type == Type::boolean) return {};
  const problem::TensorSpec& tensor = problem_.param(instr.param).tensor;
  const auto bytes = static_cast<int>(size_of(tensor.dtype));
  if (bytes > 4 || (bytes == 1 && (use.transposed || tensor.dtype == DType::i8)) || !tensor.aligned)
    return {};  // bytes: widened without a sign only
  PairTile tile{id, static_cast<std::size_t>(instr.param), bytes, -1, -1, 0, 0, {}};
  const std::int64_t piece = 16 / tile.element_bytes;  // where TMA boxes may begin
  const auto aligned = [&](std::size_t d) {
    constexpr std::int64_t most = std::int64_t{1} << 38;  // what a tensor map can say
    return tensor.strides[d] > 0 && tensor.strides[d] % piece == 0 && tensor.strides[d] < most;
  };
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    const ValueId index = instr.index[d];
    if (is_uniform(index)) {
      if (tensor.strides[d] == 0 || tensor.sizes[d] == 1) continue;
      if (!aligned(d)) return {};
      tile.others.push_back(static_cast<int>(d));
      continue;
    }
    const auto sum = sum_of(index);
    if (!scoring::is_inside(bounds_[index], tensor.sizes[d]) || !sum) return {};
    const std::int64_t count = static_cast<std::int64_t>(bounds_[index].high) + 1;
    constexpr int chunk_bytes = 128;
    if (tile.column < 0 && tensor.strides[d] == 1 && sum->kv == 0 && columns_[index].line * tile.element_bytes >= chunk_bytes &&
        !program_.depends_on(index, scoring::depends_q)) {
      tile.column = static_cast<int>(d), tile.columns = count, tile.wraps = true;
      continue;
    }
    if (use.stairs && tile.column < 0 && tensor.strides[d] == 1 && tile.element_bytes == 4 && columns_[index].stairs &&
        !program_.depends_on(index, scoring::depends_q)) {
      tile.column = static_cast<int>(d), tile.columns = count, tile.stairs = true;
      continue;
    }
    for (const auto& [term, factor] : sum->terms)
      if (!is_uniform(term)) return {};
    const bool begins_aligned = sum->terms.empty() && (sum->constant + problem_.attention.kv_offset) % piece == 0;
    if (sum->kv == 1 && sum->q == 0 && tile.column < 0 && tensor.strides[d] == 1 && begins_aligned) {
      tile.column = static_cast<int>(d), tile.columns = count;
    } else if (sum->q == 1 && sum->kv == 0 && tile.row < 0 && aligned(d)) {
      tile.row = static_cast<int>(d), tile.rows = count;
    } else {
      return {};
    }
  }
  if (tile.column < 0 || tile.row < 0 || tile.others.size() > 2) return {};
  return tile;
}

}  // namespace foveal::cuda
