// Indices as sums of positions: what a thread computes once for the pairs that it steps through, and reads that TMA can load as tiles.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/score/score_writer.h"
#include "score/bounds.h"

namespace foveal::cuda {

bool Writer::is_affine(ValueId value) const {
  const Product product = product_of(value);
  if (product.rest.size() != 1) return false;
  const Instr& rest = program_[product.rest[0]];
  if (rest.op != Op::to_real || !is_small_integer(rest.arg[0])) return false;
  const auto sum = sum_of(rest.arg[0]);
  return sum && std::all_of(sum->terms.begin(), sum->terms.end(), [&](const auto& term) { return is_uniform(term.first); });
}

std::int64_t Writer::entries_of(const Instr& instr, std::size_t dimension, bool padded) const {
  const std::int64_t size = problem_.param(instr.param).param.shape()[dimension];
  return padded ? table_row_entries(problem_, instr.index, dimension, size) : size;
}

std::string Writer::element_text(const Instr& instr, bool padded) const {
  if (const auto lines = element_by_lines(instr, padded)) return text_of(*lines);
  const auto param = static_cast<std::size_t>(instr.param);
  std::string element;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    if (!is_pair_dimension(program_, instr.index[d])) continue;
    const bool inside = padded && scoring::is_inside(bounds_[instr.index[d]], entries_of(instr, d, true));
    const std::string index = inside ? base::join("int(v", instr.index[d], ")") : index_text(instr.index[d], param, d);
    element = element.empty() ? index : base::join("(", element, ") * ", entries_of(instr, d, padded), " + ", index);
  }
  return element.empty() ? "0" : element;
}

std::string Writer::index_text(ValueId index, std::size_t param, std::size_t dimension) const {
  const auto& size = problem_.params[param].param.shape()[dimension];
  if (scoring::is_inside(bounds_[index], size)) return base::join("int(v", index, ")");
  return base::join("fv_clamp(v", index, ", args.param[", param, "].size[", dimension, "])");
}

std::string Writer::offset_text(const Instr& instr) const {
  const auto param = static_cast<std::size_t>(instr.param);
  const problem::TensorSpec& tensor = problem_.params[param].tensor;
  std::int64_t reach = 0;
  for (std::size_t d = 0; d < instr.index.size(); ++d) reach += std::abs(tensor.strides[d]) * (tensor.sizes[d] - 1);
  const char* width = reach < std::numeric_limits<std::int32_t>::max() ? "int" : "i64";
  std::string offset;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    if (tensor.strides[d] == 0) continue;
    if (!offset.empty()) offset += " + ";
    offset += index_text(instr.index[d], param, d);
    if (tensor.strides[d] != 1) offset += base::join(" * ", width, "(args.param[", param, "].stride[", d, "])");
  }
  if (offset.empty()) offset.push_back('0');
  return offset;
}

std::optional<PairTile> Writer::tile_of(ValueId id, TileUse use) const {
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
    if (tile.column < 0 && tensor.strides[d] == 1 && sum->kv == 0 && forms_[index].line * tile.element_bytes >= chunk_bytes &&
        !program_.depends_on(index, scoring::depends_q)) {
      tile.column = static_cast<int>(d), tile.columns = count, tile.wraps = true;
      continue;
    }
    if (use.stairs && tile.column < 0 && tensor.strides[d] == 1 && tile.element_bytes == 4 && forms_[index].stairs &&
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

std::pair<std::string, std::string> Writer::bytes_from_origin(const Instr& instr) const {
  const auto param = static_cast<std::size_t>(instr.param);
  const problem::TensorSpec& tensor = problem_.params[param].tensor;
  const std::size_t size = size_of(tensor.dtype);
  const std::string scale = size == 1 ? "" : base::join(" * ", size);
  std::string origin, step;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    const std::string index = index_text(instr.index[d], param, d);
    const auto sum = sum_of_places(instr.index[d]);
    if (index.compare(0, 4, "int(") != 0) return {base::join("i64(", offset_text(instr), ")", scale), "0"};
    const std::string stride = base::join("args.param[", param, "].stride[", d, "]");
    const auto add = [&](std::string& text, const std::string& value, bool narrow) {
      if (!text.empty()) text += " + ";
      if (tensor.strides[d] == 1) {
        text += narrow ? base::join("i64((", value, ")", scale, ")") : base::join("i64(", value, ")", scale);
      } else {
        text += narrow ? base::join("i64((", value, ") * (int(", stride, ")", scale, "))")
                       : base::join("i64(", value, ") * (", stride, scale, ")");
      }
    };
    constexpr std::int64_t most = 1 << 20;  // positions within a tile times this and eight bytes fit into 32 bits
    add(origin, sum ? sum->origin : base::join("v", instr.index[d]), false);
    if (sum) add(step, sum->step, std::abs(tensor.strides[d]) <= most / sum->factors);
  }
  return {origin, step.empty() ? "0" : step};
}

std::optional<Writer::SumOfPlaces> Writer::sum_of_places(ValueId id) const {
  constexpr double limit = 1 << 30;
  const Interval& bounds = bounds_[id];
  const auto sum = sum_of(id);
  if (!sum || !(bounds.low >= -limit && bounds.high <= limit)) return {};
  if (sum->q == 0 && sum->kv == 0) return {};
  SumOfPlaces places{.origin = {}, .step = {}, .factors = std::abs(sum->q) + std::abs(sum->kv)};
  const auto append = [](std::string& text, std::int64_t factor, const std::string& value) {
    if (factor == 0) return;
    if (!text.empty() || factor < 0) text += factor < 0 ? " - " : " + ";
    text += std::abs(factor) == 1 ? value : base::join(std::abs(factor), " * ", value);
  };
  append(places.origin, sum->kv, "(at.kv - at.kv_step)");
  append(places.origin, sum->q, "(at.q - at.q_step)");
  for (const auto& [atom, factor] : sum->terms) append(places.origin, factor, base::join("v", atom));
  if (sum->constant != 0) append(places.origin, sum->constant < 0 ? -1 : 1, std::to_string(std::abs(sum->constant)));
  append(places.step, sum->kv, "at.kv_step");
  append(places.step, sum->q, "at.q_step");
  return places;
}

std::optional<Writer::SumOfLines> Writer::sum_of_lines(ValueId id) const {
  constexpr double limit = 1 << 30;
  const auto sum = sum_of(id);
  if (!sum) return {};
  const scoring::Box box = problem::box_of(problem_);
  const auto size = [](const Interval& value) { return std::max(std::abs(value.low), std::abs(value.high)); };
  double reach = std::abs(static_cast<double>(sum->constant));  // of either part
  const auto append = [&](std::string& text, std::int64_t factor, const std::string& value, double most) {
    if (factor == 0) return;
    reach += std::abs(static_cast<double>(factor)) * most;
    text += base::join(text.empty() ? "" : " + ", value, factor == 1 ? "" : base::join(" * ", factor));
  };
  std::string row, column;
  bool of_places = true;
  append(row, sum->q, "at.q", size(box.q_idx));
  append(column, sum->kv, "at.kv", size(box.kv_idx));
  for (const auto& [atom, factor] : sum->terms) {
    const Varies over = scoring::varies(program_, atom);
    if (over == Varies::diagonal || over == Varies::pair) return {};
    of_places = of_places && over == Varies::uniform;
    append(over == Varies::column ? column : row, factor, base::join("v", atom), size(bounds_[atom]));
  }
  if (of_places || row.empty() || column.empty() || !(reach <= limit)) return {};
  if (sum->constant != 0) row += base::join(" + ", sum->constant);
  return SumOfLines{row, column, column_steps(id)};
}

bool Writer::of_kv(ValueId id, const std::string& kv, std::string& text, std::int64_t& divided, std::vector<std::int64_t>& blocks) const {
  const Instr& instr = program_[id];
  if (instr.op == Op::kv_idx) {
    text = kv, divided = 1;
    return true;
  }
  if ((instr.op != Op::floor_div && instr.op != Op::mod) || program_[instr.arg[1]].op != Op::integer_const) return false;
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t by = program_[instr.arg[1]].integer;
  std::string value;
  if (!of_kv(instr.arg[0], kv, value, divided, blocks) || by <= 0 || by > most / divided || by * divided % 8 != 0) return false;
  blocks.push_back(by * divided);
  const bool divides = instr.op == Op::floor_div;
  text = base::join("int(u32(", value, divides ? ") / " : ") % ", by, "u)");
  if (divides) divided *= by;
  return true;
}

std::optional<Writer::ColumnSteps> Writer::column_steps(ValueId id) const {
  const auto sum = sum_of(id);
  if (problem_.attention.kv_offset != 0 || !sum) return {};
  ColumnSteps steps;
  const auto append = [](std::string& text, const std::string& value, std::int64_t factor) {
    text += base::join(text.empty() ? "" : " + ", value, factor == 1 ? "" : base::join(" * ", factor));
  };
  if (sum->kv != 0) append(steps.origin, "(at.kv - at.kv_step)", sum->kv), append(steps.step, "at.kv_step", sum->kv);
  for (const auto& [atom, factor] : sum->terms) {
    if (scoring::varies(program_, atom) != Varies::column) continue;
    std::int64_t divided = 1;
    std::string origin, step;
    std::vector<std::int64_t> once;
    if (!of_kv(atom, "(at.kv - at.kv_step)", origin, divided, once) || !of_kv(atom, "at.kv_step", step, divided, steps.blocks)) return {};
    append(steps.origin, origin, factor), append(steps.step, step, factor);
  }
  if (steps.origin.empty()) return {};
  return steps;
}

std::string Writer::text_of(const SumOfLines& sum) { return base::join("(fv_kept(", sum.row, ") + fv_kept(", sum.column, "))"); }

std::optional<Writer::SumOfLines> Writer::element_by_lines(const Instr& instr, bool padded) const {
  const auto param = static_cast<std::size_t>(instr.param);
  SumOfLines element;
  element.steps = ColumnSteps{};
  std::int64_t step = 1;
  for (std::size_t d = instr.index.size(); d-- > 0;) {
    const ValueId id = instr.index[d];
    const Varies over = scoring::varies(program_, id);
    if (over == Varies::uniform) continue;
    const std::string index = index_text(id, param, d);
    const bool inside = index.compare(0, 4, "int(") == 0;
    const auto add = [&](std::string& text, const std::string& value) {
      text += base::join(text.empty() ? "(" : " + (", value, ")", step == 1 ? "" : base::join(" * ", step));
    };
    if (over == Varies::row) {
      add(element.row, index);
    } else {
      std::optional<ColumnSteps> steps;
      if (over == Varies::column) {
        add(element.column, index);
        if (inside) steps = column_steps(id);
      } else {
        const auto lines = sum_of_lines(id);
        if (!lines || !inside) return {};
        add(element.row, lines->row);
        add(element.column, lines->column);
        steps = lines->steps;
      }
      if (steps && element.steps) {
        add(element.steps->origin, steps->origin);
        add(element.steps->step, steps->step);
        element.steps->blocks.insert(element.steps->blocks.end(), steps->blocks.begin(), steps->blocks.end());
      } else {
        element.steps.reset();
      }
    }
    step *= entries_of(instr, d, padded);
  }
  if (element.row.empty() || element.column.empty()) return {};
  return element;
}

std::optional<Writer::Sum> Writer::sum_of(ValueId id) const {
  constexpr std::int64_t most_factor = 1 << 20, most_constant = 1 << 30;
  const scoring::Linear& form = linear_[id];
  if (program_[id].type != Type::integer || is_wide(id) || std::abs(form.constant) >= most_constant) return {};
  Sum sum{.constant = form.constant};
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

bool Writer::steps_with(ValueId index, Op position) const {
  const auto sum = sum_of(index);
  if (!sum || (position == Op::q_idx ? sum->q : sum->kv) == 0) return false;
  return std::all_of(sum->terms.begin(), sum->terms.end(), [&](const auto& term) { return is_uniform(term.first); });
}

bool Writer::is_small_integer(ValueId id) const {
  const Interval& bounds = bounds_[id];
  constexpr double limit = 1 << 22;
  return program_[id].type == Type::integer && !is_uniform(id) && bounds.low >= -limit && bounds.high <= limit;
}

}  // namespace foveal::cuda
