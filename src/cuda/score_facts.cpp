#include "cuda/score_facts.h"

#include <algorithm>

#include "cuda/score_writer.h"

namespace foveal::cuda {
namespace {

bool result_depends_on_head(const Program& program) { return (program.depends_of(program.outputs[0]) & scoring::depends_head) != 0; }

}  // namespace

bool evaluates_special_functions(const problem::Problem& p) {
  using scoring::Op;
  constexpr Op special[] = {Op::exp,  Op::exp2,    Op::log, Op::log2, Op::sqrt, Op::rsqrt,
                            Op::tanh, Op::sigmoid, Op::sin, Op::cos,  Op::tan,  Op::pow};
  const scoring::Program& program = p.score->forward;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const Varies over = scoring::varies(program, static_cast<ValueId>(i));
    if ((over == Varies::diagonal || over == Varies::pair) &&
        std::find(std::begin(special), std::end(special), program.code[i].op) != std::end(special))
      return true;
  }
  return false;
}

bool is_light(const problem::Problem& p) {
  const scoring::Program& program = p.pass == Pass::forward ? p.score->forward : p.score->backward;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const scoring::Op op = program.code[i].op;
    const bool light = op == scoring::Op::score || op == scoring::Op::add || op == scoring::Op::sub || op == scoring::Op::mul;
    if ((program.depends[i] & scoring::depends_score) != 0 && !light) return false;
  }
  return true;
}

bool reads_pairs(const problem::Problem& p, std::uint8_t besides, const std::vector<PairTile>& tiles) {
  const scoring::Program& program = p.pass == Pass::forward ? p.score->forward : p.score->backward;
  constexpr std::uint8_t pair = scoring::depends_q | scoring::depends_kv;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const auto same = [&](const PairTile& tile) { return tile.read == static_cast<scoring::ValueId>(i); };
    if (program.code[i].op == scoring::Op::read && (program.depends[i] & (pair | besides)) == pair && !program.along_diagonals[i] &&
        std::none_of(tiles.begin(), tiles.end(), same))
      return true;
  }
  return false;
}

bool sequences_share_pairs(const problem::Problem& p) { return p.batch > 1 && reads_pairs(p, scoring::depends_batch); }

bool comes_from(const scoring::Program& program, scoring::ValueId value, scoring::ValueId source) {
  std::vector<bool> reached(program.code.size(), false);
  reached[static_cast<std::size_t>(source)] = true;
  for (std::size_t i = static_cast<std::size_t>(source) + 1; i < program.code.size(); ++i) {
    const auto is = [&](scoring::ValueId id) { return id >= 0 && reached[static_cast<std::size_t>(id)]; };
    reached[i] = std::any_of(program.code[i].arg.begin(), program.code[i].arg.end(), is) ||
                 std::any_of(program.code[i].index.begin(), program.code[i].index.end(), is);
  }
  return reached[static_cast<std::size_t>(value)];
}

std::vector<PairTile> find_pair_tiles(const Problem& p) {
  const Program& program = program_of(p);
  const Writer writer(p, program);
  std::vector<PairTile> tiles;
  for (std::size_t i = 0; i < program.code.size() && tiles.size() < max_pair_tiles; ++i)
    if (auto tile = writer.tile_of(static_cast<ValueId>(i))) tiles.push_back(*std::move(tile));
  return tiles;
}

std::vector<PairTile> find_transposed_pair_tiles(const Problem& p) {
  const Program& program = program_of(p);
  const Writer writer(p, program);
  const auto forms = scoring::column_forms(program, p.attention.kv_offset);
  std::vector<PairTile> tiles;
  for (std::size_t i = 0; i < program.code.size() && tiles.size() < max_pair_tiles; ++i) {
    auto tile = writer.tile_of(static_cast<ValueId>(i), true);
    if (!tile) tile = writer.tile_of(static_cast<ValueId>(i), true, true);
    if (!tile) continue;
    const scoring::ColumnForm& form = forms[static_cast<std::size_t>(program.code[i].index[static_cast<std::size_t>(tile->column)])];
    if (tile->wraps && form.repeats) tile->keys = scoring::ColumnForm::period;
    tile->same = tile->stairs && form.run >= 16;
    tiles.push_back(*std::move(tile));
  }
  return tiles;
}

std::int64_t table_row_entries(const Problem& p, const std::vector<ValueId>& index, std::size_t dimension, std::int64_t size) {
  const Program& program = program_of(p);
  const auto differs = [&](ValueId id) { return is_pair_dimension(program, id); };
  const auto place = index.begin() + static_cast<std::ptrdiff_t>(dimension);
  const bool last = std::none_of(place + 1, index.end(), differs), only = std::none_of(index.begin(), place, differs);
  const Instr& at = program[index[dimension]];
  const bool of_byte = at.op == Op::read && p.params[static_cast<std::size_t>(at.param)].tensor.dtype == DType::u8;
  if (last && only && of_byte && p.pass == Pass::forward) return std::max<std::int64_t>(size, 256);
  return last && !only && size % 2 == 0 ? size + 1 : size;
}

std::vector<ReadTable> find_read_tables(const Problem& p, const std::vector<PairTile>& tiles) {
  const Program& program = program_of(p);
  std::vector<ReadTable> tables;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const Instr& instr = program.code[i];
    const auto same = [&](const PairTile& tile) { return tile.read == static_cast<ValueId>(i); };
    const bool at_pairs =
        scoring::varies(program, static_cast<ValueId>(i)) == Varies::pair && !(program.depends[i] & scoring::depends_score);
    if (instr.op != Op::read || instr.type != Type::real || !at_pairs || std::any_of(tiles.begin(), tiles.end(), same)) continue;
    if (p.params[static_cast<std::size_t>(instr.param)].tensor.dtype == DType::f64) continue;
    const std::int64_t most = 8 * p.seqlen_kv;  // filled for a row of tiles, and read there for 64 times as many pairs as one has keys
    const auto& shape = p.params[static_cast<std::size_t>(instr.param)].param.shape();
    std::int64_t elements = 1, entries = 1;
    for (std::size_t d = 0; d < instr.index.size() && elements <= most; ++d) {
      if (!is_pair_dimension(program, instr.index[d])) continue;
      elements *= shape[d];
      entries *= table_row_entries(p, instr.index, d, shape[d]);
    }
    if (elements <= most) tables.push_back({static_cast<ValueId>(i), elements, entries});
  }
  std::stable_sort(tables.begin(), tables.end(), [](const ReadTable& a, const ReadTable& b) { return a.entries < b.entries; });
  return tables;
}

bool is_capped(const Problem& p) {
  if (!p.has_score_mod()) return false;
  Given given;
  given.tanh = Writer(p, p.score->forward).tanh_of_score();
  return Writer(p, p.score->forward, given).is_capped(p.score->forward.outputs[0]);
}

bool is_sum(const Problem& p) {
  if (p.pass != Pass::forward || !p.has_score_mod()) return false;
  const auto sum = Writer(p, p.score->forward).sum_with_score(p.score->forward.outputs[0]);
  return sum && !sum->is_long;
}

bool offsets_come_first(const Problem& p, const std::vector<PairTile>& tiles, const std::vector<ReadTable>& tables) {
  if (p.pass != Pass::forward || !p.has_score_mod() || tables.empty()) return false;
  const Program& program = p.score->forward;
  const auto is_read = [&](std::size_t i) { return program.code[i].op == Op::read; };
  const auto integers_choose = [&](const ReadTable& table) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(table.read); ++i)
      if (is_read(i) && comes_from(program, table.read, static_cast<ValueId>(i))) return true;
    return false;
  };
  if (!std::all_of(tables.begin(), tables.end(), integers_choose)) return false;
  if (std::any_of(tiles.begin(), tiles.end(), [](const PairTile& tile) { return tile.element_bytes > 1; })) return false;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const auto is = [&](const auto& known) { return known.read == static_cast<ValueId>(i); };
    const bool of_pairs = is_read(i) && scoring::varies(program, static_cast<ValueId>(i)) == Varies::pair;
    if (of_pairs && std::none_of(tiles.begin(), tiles.end(), is) && std::none_of(tables.begin(), tables.end(), is)) return false;
  }
  const auto sum = Writer(p, program).sum_with_score(program.outputs[0]);
  return sum && sum->gain_is_plain;
}

int offsets_as_columns(const Problem& p, const LineValues& lines) {
  constexpr std::size_t least = 2,
                        most = 5;  // one costs less as an instruction; more take as much of the tensor cores as half of head dim 64
  if (p.pass != Pass::forward || !p.has_score_mod()) return 0;
  const auto sum = Writer(p, p.score->forward, {.lines = lines}).sum_with_score(p.score->forward.outputs[0]);
  if (!sum || !sum->gain_is_plain || sum->offsets.size() < least || sum->offsets.size() > most) return 0;
  for (const auto& offset : sum->offsets)
    if (std::find(lines.walk.begin(), lines.walk.end(), offset.column) == lines.walk.end()) return 0;
  return static_cast<int>(sum->offsets.size());
}

std::vector<bool> straight_values(const Problem& p) {
  const Program& program = program_of(p);
  const Writer writer(p, program);
  std::vector<bool> straight;
  for (std::size_t i = 0; i < program.code.size(); ++i) straight.push_back(writer.is_straight(static_cast<ValueId>(i)));
  return straight;
}

bool is_long(const Problem& p) {
  constexpr int limit = 500;  // instructions, about
  const scoring::Program& program = program_of(p);
  int instructions = 0;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    if (scoring::varies(program, static_cast<ValueId>(i)) == Varies::uniform) continue;
    switch (program.code[i].op) {
      case Op::sin:
      case Op::cos:
      case Op::tan:
      case Op::pow:
        instructions += 60;  // reduction of any argument
        break;
      case Op::erf:
      case Op::mod:
      case Op::floor_div:
        instructions += 20;
        break;
      case Op::exp:
      case Op::exp2:
      case Op::log:
      case Op::log2:
      case Op::tanh:
      case Op::sigmoid:
        instructions += 6;
        break;
      default:
        ++instructions;
    }
  }
  return instructions > limit;
}

bool slope_has_unit(const Problem& p) {
  if (!p.has_score_mod() || p.pass != Pass::backward) return false;
  const scoring::Instr& slope = p.score->backward.code[static_cast<std::size_t>(p.score->dscore)];
  if (slope.op == Op::real_const && slope.real == 1) return false;
  return Writer(p, program_of(p)).slope_apart_from_uniform(p.score->dscore).uniform != "1";
}
bool score_depends_on_head(const Problem& p) { return p.has_score_mod() && result_depends_on_head(p.score->forward); }
bool mask_depends_on_head(const Problem& p) { return p.has_mask() && result_depends_on_head(p.score->mask); }

}  // namespace foveal::cuda
