#include "cpu/tape_compile.h"

#include <algorithm>
#include <limits>

#include "cpu/tape_lower.h"

namespace foveal::cpu {
namespace {

using scoring::TrainableRead;

/// The layout of a gradient accumulator: contiguous.
TapeLayout contiguous(const std::vector<std::int64_t>& shape) {
  TapeLayout layout{shape, std::vector<std::int64_t>(shape.size(), 1)};
  for (std::size_t d = shape.size(); d-- > 1;) layout.strides[d - 1] = layout.strides[d] * shape[d];
  return layout;
}

/// Reduces ds * factor to the rank of an address. Factors that are constant along the reduction are applied after it.
class GradientSum {
 public:
  GradientSum(TapeNodes& nodes, NodeId factor, bool factor_is_one) : nodes_(nodes), factor_(factor), factor_is_one_(factor_is_one) {}

  NodeId over(NodeId ds, Varies rank) {
    const Varies of_factor = nodes_[factor_].rank;
    if (rank == Varies::pair) return times_factor(ds);
    if (rank == Varies::uniform) return over_tile(ds, of_factor);
    const bool afterwards = of_factor == Varies::uniform || of_factor == rank;
    const NodeId sum = nodes_.make_ranked(sum_to(rank), rank, afterwards ? ds : times_factor(ds));
    return afterwards ? times_factor(sum) : sum;
  }

 private:
  NodeId over_tile(NodeId ds, Varies of_factor) {
    const bool by_pair = of_factor != Varies::uniform && of_factor != Varies::row;
    NodeId sum = nodes_.make_ranked(TapeOp::sum_keys, Varies::row, by_pair ? times_factor(ds) : ds);
    if (of_factor == Varies::row) sum = times_factor(sum);
    sum = nodes_.make_ranked(TapeOp::sum_all, Varies::uniform, sum);
    return of_factor == Varies::uniform ? times_factor(sum) : sum;
  }
  static TapeOp sum_to(Varies rank) {
    return rank == Varies::row ? TapeOp::sum_keys : rank == Varies::column ? TapeOp::sum_lanes : TapeOp::sum_diagonals;
  }
  NodeId times_factor(NodeId value) { return factor_is_one_ ? value : nodes_.make(TapeOp::guarded_mul, value, factor_); }

  TapeNodes& nodes_;
  NodeId factor_;
  bool factor_is_one_;
};

NodeId accumulate(TapeNodes& nodes, const Lowering& lowering, const TrainableRead& read, const scoring::ScoreProgram& score) {
  std::vector<NodeId> index;
  for (scoring::ValueId value : read.index) index.push_back(lowering.plain(value));
  const int place = nodes.place(read.param, std::move(index), contiguous(score.params[static_cast<std::size_t>(read.param)].shape));
  const Varies rank = nodes.rank_of_place(place);
  GradientSum sum(nodes, lowering.plain(read.factor), lowering.is_constant(read.factor, 1));
  return nodes.make_ranked(TapeOp::accumulate, rank, sum.over(nodes.ds(), rank), place);
}

}  // namespace

CompiledTape compile_forward(const TapeSource& source, bool masked) {
  TapeNodes nodes(source);
  NodeId score = nodes.dots();
  if (!source.score->forward.empty()) {
    Lowering lowering(nodes, source.score->forward);
    score = lowering.times(source.score->forward.outputs[0], 1);
  }
  if (masked && !source.score->mask.empty()) {
    const Lowering lowering(nodes, source.score->mask);
    const NodeId dropped = nodes.real(-std::numeric_limits<double>::infinity(), false);
    score = nodes.make(TapeOp::select_r, lowering.plain(source.score->mask.outputs[0]), score, dropped);
  }
  if (nodes[score].space != Space::none || nodes[score].rank != Varies::pair)
    score = nodes.make_ranked(TapeOp::copy_r, Varies::pair, score);
  return assemble(nodes, {}, score);
}

CompiledTape compile_backward(const TapeSource& source, bool& reads_dots) {
  TapeNodes nodes(source);
  const scoring::ScoreProgram& score = *source.score;
  const Lowering lowering(nodes, score.backward);
  const NodeId ds = nodes.ds();
  std::vector<NodeId> roots;
  for (const TrainableRead& read : score.reads) roots.push_back(accumulate(nodes, lowering, read, score));
  NodeId output = no_node;
  if (!lowering.is_constant(score.dscore, 1)) output = nodes.make_output(TapeOp::guarded_mul, ds, lowering.plain(score.dscore));
  std::vector<Varies> sums;
  for (const NodeId root : roots) sums.push_back(nodes[root].rank);
  CompiledTape tape = assemble(nodes, std::move(roots), output);
  tape.sums = std::move(sums);
  reads_dots = std::any_of(tape.steps.begin(), tape.steps.end(), [](const TapeStep& step) {
    return step.a.space == Space::input || step.b.space == Space::input || step.c.space == Space::input;
  });
  return tape;
}

}  // namespace foveal::cpu
