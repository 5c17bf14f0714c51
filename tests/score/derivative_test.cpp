// Derivatives by many variables at once: the values that one walk over the whole graph for each variable makes, in fewer steps.
#include "score/derivative.h"

#include <gtest/gtest.h>

#include <functional>

#include "foveal/error.h"
#include "score/random_expr.h"

namespace foveal::scoring {
namespace {

/// Forward mode as in a textbook.
ValueId in_one_walk(Graph& graph, ValueId value, ValueId variable) {
  base::IdVector<ValueId> tangent(static_cast<std::size_t>(value) + 1, zero_tangent);
  tangent[variable] = graph.real(1);
  const base::IdVector<char> needed = ancestors(graph, {value});
  for (ValueId id = variable + 1; id <= value; ++id) {
    if (!needed[id] || graph.type(id) != Type::real || row(graph[id].op).derivative == nullptr) continue;
    TangentStep step{graph, id, graph[id].arg, {zero_tangent, zero_tangent, zero_tangent}};
    bool depends = false;
    for (std::size_t i = 0; i < 3; ++i) {
      if (step.arg[i] >= 0) step.tangent[i] = tangent[step.arg[i]];
      depends |= step.tangent[i] != zero_tangent;
    }
    if (depends) tangent[id] = row(graph[id].op).derivative(step);
  }
  return tangent[value];
}

std::vector<ValueId> leaves(const Graph& graph, ValueId value) {
  std::vector<ValueId> found;
  for (ValueId id = 0; id <= value; ++id)
    if (graph[id].op == Op::score || (graph[id].op == Op::read && graph.type(id) == Type::real)) found.push_back(id);
  return found;
}

TEST(Derivatives, AreThoseOfOneWalkForEachVariable) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    test::RandomExpr random(seed);
    Expr sum = random.real(3);  // sums whose terms share what they are made of
    for (int term = 0; term < 6; ++term) {
      const Expr next = random.real(2);
      sum = seed % 3 == 0 ? sum - next : seed % 3 == 1 ? sum + next * sum : max(sum, next) + next;
    }
    Graph graph(random.params());
    const ValueId value = graph.to_real(graph.lower(sum));
    Derivatives derivatives(graph, value);
    for (const ValueId variable : leaves(graph, value)) {
      const ValueId expected = in_one_walk(graph, value, variable);
      const ValueId size = graph.size();
      ASSERT_EQ(derivatives.by(variable), expected) << "seed " << seed << ", variable " << variable;
      ASSERT_EQ(graph.size(), size) << "seed " << seed << ": values that nothing needs";
    }
  }
}

/// Steps for all reads of a sum of `count` terms.
std::int64_t steps(int count, const std::function<Expr(const Expr& sum, const Expr& read)>& append) {
  const Param table("t", {100000}, Type::real);
  Expr sum = symbols::score;
  for (int i = 0; i < 2 * count; ++i) sum = append(sum, table(symbols::q_idx + i % count));
  Graph graph({table});
  const ValueId value = graph.lower(tanh(sum));
  Derivatives derivatives(graph, value);
  for (const ValueId variable : leaves(graph, value)) EXPECT_NE(derivatives.by(variable), zero_tangent);
  return derivatives.steps();
}

TEST(Derivatives, ByEveryTermOfASumTakeStepsOfItsSize) {
  const std::vector<std::function<Expr(const Expr&, const Expr&)>> kinds{
      [](const Expr& sum, const Expr& read) { return sum + read; }, [](const Expr& sum, const Expr& read) { return sum - 2 * read; },
      [](const Expr& sum, const Expr& read) { return sum + exp(read * symbols::kv_idx); }};
  for (const auto& kind : kinds) EXPECT_LE(steps(4000, kind), 4000 * 12);
}

TEST(Derivatives, OfChainsThatTakeTheSquareOfTheirLengthAreRefused) {
  const auto alternate = [](const Expr& sum, const Expr& read) { return read - sum; };
  EXPECT_LE(steps(1000, alternate), 1000 * 2000 + 2000);
  EXPECT_THROW(steps(4000, alternate), Error);
}

}  // namespace
}  // namespace foveal::scoring
