// The tables of docs/score-language.md are what the compiler says. FOVEAL_WRITE_DOCS=1 writes them again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "foveal/masks.h"
#include "score/derivative.h"
#include "score/op_table.h"
#include "score/print.h"

namespace foveal {
namespace {

using scoring::Op;
using scoring::OpRow;

/// A bar would end the cell.
std::string cell(std::string text) {
  if (text.empty()) return "";
  const bool bar = text.find('|') != std::string::npos;
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 6) text.replace(at, 1, "&#124;");
  return bar ? base::join("<code>", text, "</code>") : base::join('`', text, '`');
}

std::string type_names(std::string_view letters) {
  std::string names;
  for (char letter : letters) {
    const char* name = letter == 'r' ? "real" : letter == 'i' ? "integer" : letter == 'b' ? "boolean" : letter == 'n' ? "number" : "any";
    names += base::join(names.empty() ? "" : ", ", name);
  }
  return names;
}

/// The derivatives by x, y, ..., as text; the reads x[] stand for the operands.
std::string derivatives(const OpRow& row) {
  if (row.signature.back() == 'b' || row.signature.back() == 'i' || row.op == Op::to_real) return "";
  scoring::Graph graph;
  std::vector<scoring::ValueId> operands;
  for (int i = 0; i < row.arity; ++i) {
    const bool condition = row.op == Op::select && i == 0;
    const Param operand(condition ? "c" : std::string(1, static_cast<char>('x' + i - (row.op == Op::select))), {},
                        condition ? Type::boolean : Type::real);
    operands.push_back(graph.read(*operand.info(), {}));
  }
  operands.resize(3, -1);
  const scoring::ValueId value = graph.make(row.op, operands[0], operands[1], operands[2]);
  std::string text;
  for (scoring::ValueId operand : operands) {
    if (operand < 0 || graph.type(operand) != Type::real) continue;
    const scoring::ValueId derivative = scoring::Derivatives(graph, value).by(operand);
    std::string one = derivative == scoring::zero_tangent ? "0" : scoring::print(graph, derivative);
    for (std::size_t at = 0; (at = one.find("[]", at)) != std::string::npos;) one.erase(at, 2);
    text += (text.empty() ? "" : ", ") + cell(one);
  }
  return text;
}

std::string operations() {
  std::ostringstream out;
  out << "| operation | text | operands | result | derivative | CUDA, real | CUDA, integer or boolean |\n|---|---|---|---|---|---|---|\n";
  for (const OpRow& row : scoring::op_rows()) {
    if (row.arity == 0) continue;
    const std::size_t arrow = row.signature.find('>');
    out << "| " << cell(std::string(row.name)) << " | " << cell(std::string(row.text)) << " | "
        << type_names(row.signature.substr(0, arrow)) << " | " << type_names(row.signature.substr(arrow + 1)) << " | " << derivatives(row)
        << " | " << cell(std::string(row.cuda_real)) << " | " << cell(std::string(row.cuda_integer)) << " |\n";
  }
  return out.str();
}

std::string named() {
  std::ostringstream out;
  out << "| name | meaning | is |\n|---|---|---|\n";
  for (const NamedExpr& row : named_exprs()) {
    const std::string signature = row.signature.substr(row.name.size() + 1);
    std::vector<Param> params;
    if (row.params == 1) {
      const std::size_t comma = signature.rfind(' ');
      const std::string name = signature.substr(comma == std::string::npos ? 0 : comma + 1);
      params.emplace_back(name.substr(0, name.size() - 1), std::vector<std::int64_t>{8}, Type::integer);
    }
    const std::string text = to_string(row.build(std::vector<double>(static_cast<std::size_t>(row.integers), 8.0), params));
    out << "| " << cell(row.signature) << " | " << row.summary << " | " << cell(text) << " |\n";
  }
  return out.str();
}

TEST(Docs, TablesAreWhatTheCompilerSays) {
  const std::string path = std::string(FOVEAL_SOURCE_DIR) + "/docs/score-language.md";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path;
  std::ostringstream whole;
  whole << in.rdbuf();
  const std::string before = whole.str();
  std::string after = before;
  for (const auto& [name, table] : {std::pair{"named", named()}, {"operations", operations()}}) {
    const std::string begin = base::join("<!-- generated: ", name, " -->\n");
    const std::size_t from = after.find(begin);
    ASSERT_NE(from, std::string::npos) << name;
    const std::size_t to = after.find("<!-- end -->", from);
    ASSERT_NE(to, std::string::npos) << name;
    after.replace(from + begin.size(), to - from - begin.size(), table);
  }
  if (std::getenv("FOVEAL_WRITE_DOCS") != nullptr) {
    std::ofstream(path) << after;
  } else {
    EXPECT_EQ(before, after) << "write it again with FOVEAL_WRITE_DOCS=1 score_tests --gtest_filter='Docs.*'";
  }
}

}  // namespace
}  // namespace foveal
