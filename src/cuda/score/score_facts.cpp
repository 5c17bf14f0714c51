#include "cuda/score/score_facts.h"

#include <algorithm>

#include "cuda/score/score_forms.h"
#include "score/discrete.h"
#include "score/op_table.h"

namespace foveal::cuda {
namespace {

bool result_depends_on_head(const Program& program) { return program.depends_on(program.outputs[0], scoring::depends_head); }

/// Does it read an element for each pair?
bool is_pair_read(const Program& program, ValueId id) {
  constexpr std::uint8_t pair = scoring::depends_q | scoring::depends_kv;
  return program[id].op == Op::read && (program.depends_of(id) & pair) == pair;
}

}  // namespace

bool evaluates_special_functions(const Problem& p) {
  const Program& program = p.score->forward;
  for (ValueId id = 0; id < program.size(); ++id) {
    const Varies over = scoring::varies(program, id);
    if ((over == Varies::diagonal || over == Varies::pair) && scoring::row(program[id].op).gpu.special) return true;
  }
  return false;
}

bool is_light(const Problem& p) {
  const Program& program = program_of(p);
  for (ValueId id = 0; id < program.size(); ++id) {
    const Op op = program[id].op;
    const bool light = op == Op::score || op == Op::add || op == Op::sub || op == Op::mul;
    if (program.depends_on(id, scoring::depends_score) && !light) return false;
  }
  return true;
}

bool pair_reads_differ(const Problem& p, const scoring::TrainableRead& read) {
  unsigned shared_by = 0;
  if (!read.reads_batch) shared_by |= scoring::depends_batch;
  if (!read.reads_head) shared_by |= scoring::depends_head;
  const Program& program = program_of(p);
  for (ValueId id = 0; id < program.size(); ++id)
    if (is_pair_read(program, id) && program.depends_on(id, shared_by)) return true;
  return false;
}

bool reads_pairs(const Problem& p, std::uint8_t ignored, const std::vector<PairTile>& tiles) {
  const Program& program = program_of(p);
  for (ValueId id = 0; id < program.size(); ++id) {
    const auto same = [&](const PairTile& tile) { return tile.read == id; };
    if (is_pair_read(program, id) && !program.depends_on(id, ignored) && scoring::varies(program, id) == Varies::pair &&
        std::none_of(tiles.begin(), tiles.end(), same))
      return true;
  }
  return false;
}

bool sequences_share_pairs(const Problem& p) { return p.batch > 1 && reads_pairs(p, scoring::depends_batch); }

std::int64_t table_row_entries(const Problem& p, const std::vector<ValueId>& index, std::size_t dimension, std::int64_t size) {
  const Program& program = program_of(p);
  const auto differs = [&](ValueId id) { return !scoring::is_uniform(program, id); };
  const auto place = index.begin() + static_cast<std::ptrdiff_t>(dimension);
  const bool last = std::none_of(place + 1, index.end(), differs), only = std::none_of(index.begin(), place, differs);
  const Instr& at = program[index[dimension]];
  const bool of_byte = at.op == Op::read && p.param(at.param).tensor.dtype == DType::u8;
  if (last && only && of_byte && p.pass == Pass::forward) return std::max<std::int64_t>(size, 256);
  return last && !only && size % 2 == 0 ? size + 1 : size;
}

std::vector<ReadTable> find_read_tables(const Problem& p, const std::vector<PairTile>& tiles) {
  const Program& program = program_of(p);
  std::vector<ReadTable> tables;
  for (ValueId id = 0; id < program.size(); ++id) {
    const Instr& instr = program[id];
    const auto same = [&](const PairTile& tile) { return tile.read == id; };
    const bool at_pairs = scoring::varies(program, id) == Varies::pair && !program.depends_on(id, scoring::depends_score);
    if (instr.op != Op::read || instr.type != Type::real || !at_pairs || std::any_of(tiles.begin(), tiles.end(), same)) continue;
    if (p.param(instr.param).tensor.dtype == DType::f64) continue;
    const std::int64_t most = 8 * p.seqlen_kv;  // filled for a row of tiles, and read there for 64 times as many pairs as one has keys
    const auto& shape = p.param(instr.param).param.shape();
    std::int64_t elements = 1, entries = 1;
    for (std::size_t d = 0; d < instr.index.size() && elements <= most; ++d) {
      if (scoring::is_uniform(program, instr.index[d])) continue;
      elements *= shape[d];
      entries *= table_row_entries(p, instr.index, d, shape[d]);
    }
    if (elements <= most) tables.push_back({id, elements, entries});
  }
  std::stable_sort(tables.begin(), tables.end(), [](const ReadTable& a, const ReadTable& b) { return a.entries < b.entries; });
  return tables;
}

bool is_softcap(const Problem& p) { return p.has_score_mod() && is_softcap(ScoreForms(p, p.score->forward)); }

bool is_softcap(const ScoreForms& forms) {
  Given given;
  given.tanh = forms.tanh_of_score();
  return given.tanh && ScoreForms(forms.problem(), forms.program(), given).is_softcap(forms.program().outputs[0]);
}

bool is_sum(const ScoreForms& forms) {
  const auto sum = forms.sum_with_score(forms.program().outputs[0]);
  return sum && !forms.is_long(*sum);
}

bool offsets_come_first(const ScoreForms& forms, const std::vector<PairTile>& tiles, const std::vector<ReadTable>& tables) {
  if (tables.empty()) return false;
  const Program& program = forms.program();
  const auto is_read = [&](ValueId id) { return program[id].op == Op::read; };
  const auto integers_choose = [&](const ReadTable& table) {
    const auto needed = scoring::ancestors(program, {table.read});
    for (ValueId id = 0; id < table.read; ++id)
      if (needed[id] && is_read(id)) return true;
    return false;
  };
  if (!std::all_of(tables.begin(), tables.end(), integers_choose)) return false;
  if (std::any_of(tiles.begin(), tiles.end(), [](const PairTile& tile) { return tile.element_bytes > 1; })) return false;
  for (ValueId id = 0; id < program.size(); ++id) {
    const auto is = [&](const auto& known) { return known.read == id; };
    const bool of_pairs = is_read(id) && scoring::varies(program, id) == Varies::pair;
    if (of_pairs && std::none_of(tiles.begin(), tiles.end(), is) && std::none_of(tables.begin(), tables.end(), is)) return false;
  }
  const auto sum = forms.sum_with_score(program.outputs[0]);
  return sum && sum->gain_is_plain();
}

int offsets_as_columns(const Problem& p, const LineValues& lines) {
  constexpr std::size_t least = 2,
                        most = 5;  // one costs less as an instruction; more take as much of the tensor cores as half of head dim 64
  if (p.pass != Pass::forward || !p.has_score_mod()) return 0;
  const auto sum = ScoreForms(p, p.score->forward, {.lines = lines}).sum_with_score(p.score->forward.outputs[0]);
  if (!sum || !sum->gain_is_plain() || sum->offsets.size() < least || sum->offsets.size() > most) return 0;
  for (const auto& offset : sum->offsets)
    if (std::find(lines.walk.begin(), lines.walk.end(), offset.column) == lines.walk.end()) return 0;
  return static_cast<int>(sum->offsets.size());
}

base::IdVector<char> affine_values(const ScoreForms& forms) {
  base::IdVector<char> affine;
  for (ValueId id = 0; id < forms.program().size(); ++id) affine.add(forms.is_affine(id));
  return affine;
}

base::IdVector<char> double_values(const Problem& p, const Program& program) {
  base::IdVector<char> doubles(program.size(), false);
  if (p.dtype == DType::f64) return doubles;
  const base::IdVector<char> decides = scoring::deciding_reals(program, false);
  for (ValueId id = 0; id < program.size(); ++id) {
    const Instr& instr = program[id];
    if (instr.type != Type::real || !decides[id] || scoring::rounds_to(instr.op)) continue;
    if (instr.op == Op::read)
      doubles[id] = p.param(instr.param).tensor.dtype == DType::f64;
    else
      doubles[id] = std::any_of(instr.arg.begin(), instr.arg.end(), [&](ValueId arg) { return arg >= 0 && doubles[arg]; });
  }
  return doubles;
}

bool is_long(const Problem& p) {
  constexpr int limit = 500;  // instructions, about
  const Program& program = program_of(p);
  int instructions = 0;
  for (ValueId id = 0; id < program.size(); ++id)
    if (!scoring::is_uniform(program, id)) instructions += scoring::row(program[id].op).gpu.instructions;
  return instructions > limit;
}

bool slope_has_unit(const Problem& p) {
  if (!p.has_score_mod() || p.pass != Pass::backward) return false;
  const Instr& slope = p.score->backward[p.score->dscore];
  if (slope.op == Op::real_const && slope.real == 1) return false;
  const ScoreForms forms(p, program_of(p));
  const auto hoisted = forms.hoisted_slope(p.score->dscore);
  return hoisted && forms.has_uniform_factor(*hoisted);
}
bool score_depends_on_head(const Problem& p) { return p.has_score_mod() && result_depends_on_head(p.score->forward); }
bool mask_depends_on_head(const Problem& p) { return p.has_mask() && result_depends_on_head(p.score->mask); }

}  // namespace foveal::cuda
