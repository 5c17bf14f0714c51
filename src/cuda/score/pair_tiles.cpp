// Reads that TMA can load as tiles, and how tables of elements lie.
#include "cuda/score/score_forms.h"

namespace foveal::cuda {

std::int64_t ScoreForms::entries_of(const Instr& read, std::size_t dimension, bool padded) const {
  const std::int64_t entries = size(read, dimension);
  return padded ? table_row_entries(problem_, read.index, dimension, entries) : entries;
}

std::optional<PairTile> ScoreForms::tile_of(ValueId id, TileUse use) const {
  const Instr& instr = program()[id];
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
    const Linear* const sum = sum_of(index);
    if (!is_inside(instr, d) || sum == nullptr) return {};
    const std::int64_t of_q = this->of_q(*sum), of_kv = this->of_kv(*sum), count = static_cast<std::int64_t>(bounds(index).high) + 1;
    constexpr int chunk_bytes = 128;
    if (tile.column < 0 && tensor.strides[d] == 1 && of_kv == 0 && columns_[index].line * tile.element_bytes >= chunk_bytes &&
        !program().depends_on(index, scoring::depends_q)) {
      tile.column = static_cast<int>(d), tile.columns = count, tile.wraps = true;
      continue;
    }
    if (use.stairs && tile.column < 0 && tensor.strides[d] == 1 && tile.element_bytes == 4 && columns_[index].stairs &&
        !program().depends_on(index, scoring::depends_q)) {
      tile.column = static_cast<int>(d), tile.columns = count, tile.stairs = true;
      continue;
    }
    if (!is_of_places(*sum)) return {};
    const bool begins_aligned = sum->terms.size() == 1 && (sum->constant + problem_.attention.kv_offset) % piece == 0;
    if (of_kv == 1 && of_q == 0 && tile.column < 0 && tensor.strides[d] == 1 && begins_aligned) {
      tile.column = static_cast<int>(d), tile.columns = count;
    } else if (of_q == 1 && of_kv == 0 && tile.row < 0 && aligned(d)) {
      tile.row = static_cast<int>(d), tile.rows = count;
    } else {
      return {};
    }
  }
  if (tile.column < 0 || tile.row < 0 || tile.others.size() > 2) return {};
  return tile;
}

std::vector<PairTile> find_pair_tiles(const ScoreForms& forms) {
  std::vector<PairTile> tiles;
  for (ValueId id = 0; id < forms.program().size() && tiles.size() < max_pair_tiles; ++id)
    if (auto tile = forms.tile_of(id, {})) tiles.push_back(*std::move(tile));
  return tiles;
}

std::vector<PairTile> find_transposed_pair_tiles(const ScoreForms& forms) {
  const Program& program = forms.program();
  const auto columns = scoring::column_forms(program, forms.problem().attention.kv_offset);
  std::vector<PairTile> tiles;
  for (ValueId id = 0; id < program.size() && tiles.size() < max_pair_tiles; ++id) {
    auto tile = forms.tile_of(id, {.transposed = true});
    if (!tile) tile = forms.tile_of(id, {.transposed = true, .stairs = true});
    if (!tile) continue;
    const scoring::ColumnForm& form = columns[program[id].index[static_cast<std::size_t>(tile->column)]];
    if (tile->wraps && form.repeats) tile->keys = scoring::ColumnForm::period;
    tile->same = tile->stairs && form.run >= 16;
    tiles.push_back(*std::move(tile));
  }
  return tiles;
}

}  // namespace foveal::cuda
