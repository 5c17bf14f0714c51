// Indices in text: sums of positions of which a thread computes what its pairs share once.
#include <cmath>
#include <limits>

#include "cuda/score/score_writer.h"
#include "score/bounds.h"

namespace foveal::cuda {
namespace {

/// Adds factor * value to a sum.
void append(std::string& text, const std::string& value, std::int64_t factor) {
  if (factor == 0) return;
  text += base::join(text.empty() ? "" : " + ", value, factor == 1 ? "" : base::join(" * ", factor));
}

}  // namespace

std::string Writer::element_text(const Instr& instr, bool padded) const {
  if (const auto lines = element_by_lines(instr, padded)) return text_of(*lines);
  std::string element;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    if (forms_.is_uniform(instr.index[d])) continue;
    const bool inside = padded && scoring::is_inside(forms_.bounds(instr.index[d]), forms_.entries_of(instr, d, true));
    const std::string index = inside ? base::join("int(v", instr.index[d], ")") : index_text(instr, d);
    element = element.empty() ? index : base::join("(", element, ") * ", forms_.entries_of(instr, d, padded), " + ", index);
  }
  return element.empty() ? "0" : element;
}

std::string Writer::index_text(const Instr& instr, std::size_t dimension) const {
  const ValueId index = instr.index[dimension];
  if (forms_.is_inside(instr, dimension)) return base::join("int(v", index, ")");
  return base::join("fv_clamp(v", index, ", args.param[", instr.param, "].size[", dimension, "])");
}

std::string Writer::offset_text(const Instr& instr) const {
  const auto param = static_cast<std::size_t>(instr.param);
  const problem::TensorSpec& tensor = problem().params[param].tensor;
  std::int64_t reach = 0;
  for (std::size_t d = 0; d < instr.index.size(); ++d) reach += std::abs(tensor.strides[d]) * (tensor.sizes[d] - 1);
  const char* width = reach < std::numeric_limits<std::int32_t>::max() ? "int" : "i64";
  std::string offset;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    if (tensor.strides[d] == 0) continue;
    if (!offset.empty()) offset += " + ";
    offset += index_text(instr, d);
    if (tensor.strides[d] != 1) offset += base::join(" * ", width, "(args.param[", param, "].stride[", d, "])");
  }
  if (offset.empty()) offset.push_back('0');
  return offset;
}

std::pair<std::string, std::string> Writer::bytes_from_origin(const Instr& instr) const {
  const auto param = static_cast<std::size_t>(instr.param);
  const problem::TensorSpec& tensor = problem().params[param].tensor;
  const std::size_t size = size_of(tensor.dtype);
  const std::string scale = size == 1 ? "" : base::join(" * ", size);
  std::string origin, step;
  for (std::size_t d = 0; d < instr.index.size(); ++d) {
    if (!forms_.is_inside(instr, d)) return {base::join("i64(", offset_text(instr), ")", scale), "0"};
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
    const Linear* const sum = forms_.sum_of_places(instr.index[d]);
    if (sum == nullptr) {
      add(origin, base::join("v", instr.index[d]), false);
      continue;
    }
    const Places places = places_text(*sum);
    constexpr std::int64_t most = 1 << 20;  // positions within a tile times this and eight bytes fit into 32 bits
    add(origin, places.origin, false);
    add(step, places.step, std::abs(tensor.strides[d]) <= most / (std::abs(forms_.of_q(*sum)) + std::abs(forms_.of_kv(*sum))));
  }
  return {origin, step.empty() ? "0" : step};
}

Writer::Places Writer::places_text(const Linear& sum) const {
  const std::int64_t of_q = forms_.of_q(sum), of_kv = forms_.of_kv(sum);
  Places places;
  const auto signed_term = [](std::string& text, std::int64_t factor, const std::string& value) {
    if (factor == 0) return;
    if (!text.empty() || factor < 0) text += factor < 0 ? " - " : " + ";
    text += std::abs(factor) == 1 ? value : base::join(std::abs(factor), " * ", value);
  };
  signed_term(places.origin, of_kv, "(at.kv - at.kv_step)");
  signed_term(places.origin, of_q, "(at.q - at.q_step)");
  for (const auto& [atom, factor] : sum.terms)
    if (!forms_.is_place(atom)) signed_term(places.origin, factor, base::join("v", atom));
  if (sum.constant != 0) signed_term(places.origin, sum.constant < 0 ? -1 : 1, std::to_string(std::abs(sum.constant)));
  signed_term(places.step, of_kv, "at.kv_step");
  signed_term(places.step, of_q, "at.q_step");
  return places;
}

Writer::Lines Writer::lines_text(ValueId id, const Linear& sum) const {
  Lines lines;
  append(lines.row, "at.q", forms_.of_q(sum));
  append(lines.column, "at.kv", forms_.of_kv(sum));
  for (const auto& [atom, factor] : sum.terms)
    if (!forms_.is_place(atom))
      append(scoring::varies(program(), atom) == Varies::column ? lines.column : lines.row, base::join("v", atom), factor);
  if (sum.constant != 0) lines.row += base::join(" + ", sum.constant);
  lines.steps = column_steps(id);
  return lines;
}

std::string Writer::value_at(ValueId id, const std::string& kv) const {
  const Instr& instr = program()[id];
  if (instr.op == Op::kv_idx) return kv;
  const std::int64_t by = program()[instr.arg[1]].integer;
  return base::join("int(u32(", value_at(instr.arg[0], kv), instr.op == Op::floor_div ? ") / " : ") % ", by, "u)");
}

std::optional<Writer::ColumnSteps> Writer::column_steps(ValueId id) const {
  const auto blocks = problem().attention.kv_offset == 0 ? forms_.column_blocks(id) : std::nullopt;
  if (!blocks) return {};
  ColumnSteps steps{.origin = {}, .step = {}, .blocks = *blocks};
  const Linear& sum = *forms_.sum_of(id);
  for (const auto& [text, kv] : {std::pair{&steps.origin, "(at.kv - at.kv_step)"}, {&steps.step, "at.kv_step"}}) {
    append(*text, kv, forms_.of_kv(sum));
    for (const auto& [atom, factor] : sum.terms)
      if (!forms_.is_place(atom) && scoring::varies(program(), atom) == Varies::column) append(*text, value_at(atom, kv), factor);
  }
  return steps;
}

std::string Writer::text_of(const Lines& sum) { return base::join("(fv_kept(", sum.row, ") + fv_kept(", sum.column, "))"); }

std::optional<Writer::Lines> Writer::element_by_lines(const Instr& instr, bool padded) const {
  if (!forms_.is_element_of_lines(instr)) return {};
  Lines element;
  element.steps = ColumnSteps{};
  std::int64_t step = 1;
  for (std::size_t d = instr.index.size(); d-- > 0;) {
    const ValueId id = instr.index[d];
    const Varies over = scoring::varies(program(), id);
    if (over == Varies::uniform) continue;
    const auto add = [&](std::string& text, const std::string& value) {
      text += base::join(text.empty() ? "(" : " + (", value, ")", step == 1 ? "" : base::join(" * ", step));
    };
    if (over == Varies::row) {
      add(element.row, index_text(instr, d));
    } else {
      std::optional<ColumnSteps> steps;
      if (over == Varies::column) {
        add(element.column, index_text(instr, d));
        if (forms_.is_inside(instr, d)) steps = column_steps(id);
      } else {
        const Lines lines = lines_text(id, *forms_.sum_of_lines(id));
        add(element.row, lines.row);
        add(element.column, lines.column);
        steps = lines.steps;
      }
      if (steps && element.steps) {
        add(element.steps->origin, steps->origin);
        add(element.steps->step, steps->step);
        element.steps->blocks.insert(element.steps->blocks.end(), steps->blocks.begin(), steps->blocks.end());
      } else {
        element.steps.reset();
      }
    }
    step *= forms_.entries_of(instr, d, padded);
  }
  return element;
}

}  // namespace foveal::cuda
