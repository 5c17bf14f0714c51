// Compiles a score_mod and a mask to the programs that backends run.
#include <cmath>

#include "base/check.h"
#include "base/lru_cache.h"
#include "score/derivative.h"
#include "score/diagonals.h"
#include "score/graph.h"
#include "score/print.h"
#include "score/program.h"

namespace foveal::scoring {
namespace {

ValueId lower_score(Graph& graph, const Expr& score_mod) {
  if (!score_mod.present()) return graph.symbol(Op::score);
  FOVEAL_CHECK(score_mod.type() != Type::boolean, "score_mod: the expression is boolean; expected real (a boolean one is a mask)");
  return graph.to_real(graph.lower(score_mod));
}

ValueId lower_mask(Graph& graph, const Expr& mask) {
  if (!mask.present()) return graph.boolean(true);
  FOVEAL_CHECK(mask.type() == Type::boolean, "mask: the expression is ", to_string(mask.type()),
               "; expected boolean (compare a number, as in x != 0)");
  const ValueId keep = graph.lower(mask);
  FOVEAL_CHECK((graph.depends(keep) & depends_score) == 0,
               "mask: it reads score; expected only batch, head, q_idx, kv_idx, seqlen_q, seqlen_kv and parameters");
  return keep;
}

/// where(c, x, -inf) in the score becomes a condition of the mask, so that whole tiles can be skipped.
void move_to_mask(Graph& graph, ValueId& score, ValueId& keep) {
  const auto is_minus_inf = [&](ValueId id) { return graph[id].op == Op::real_const && graph[id].real == -INFINITY; };
  for (;;) {
    const Instr instr = graph[score];
    if (instr.op != Op::select || graph.depends(instr.arg[0]) & depends_score) return;
    ValueId condition = instr.arg[0];
    if (is_minus_inf(instr.arg[2])) {
      score = instr.arg[1];
    } else if (is_minus_inf(instr.arg[1])) {
      condition = graph.make(Op::logical_not, condition);
      score = instr.arg[2];
    } else {
      return;
    }
    keep = graph.make(Op::logical_and, keep, condition);
  }
}

/// The reads that `value` is computed from.
std::vector<ValueId> reads_in(const Graph& graph, ValueId value) {
  const base::IdVector<char> needed = ancestors(graph, {value});
  std::vector<ValueId> reads;
  for (ValueId id = 0; id < needed.size(); ++id)
    if (needed[id] && graph[id].op == Op::read) reads.push_back(id);
  return reads;
}

/// symbol + constant
bool is_shifted(const Graph& graph, ValueId id, Op symbol) {
  const Linear sum = graph.linear(id);
  return sum.terms.size() == 1 && sum.terms[0].coefficient == 1 && graph[sum.terms[0].atom].op == symbol;
}

/// TrainableRead::own_elements
bool has_own_elements(const Graph& graph, const std::vector<ValueId>& index) {
  int rows = 0, columns = 0;
  for (const ValueId id : index) {
    if (varies(graph.depends(id), false) == Varies::uniform) continue;
    const bool row = is_shifted(graph, id, Op::q_idx), column = is_shifted(graph, id, Op::kv_idx);
    if (!row && !column) return false;
    rows += row, columns += column;
  }
  return rows == 1 && columns == 1;
}

class Compiler {
 public:
  explicit Compiler(const Request& request) : request_(request), graph_(request.params, true) {}

  ScoreProgram operator()() {
    check_request();
    ValueId score = lower_score(graph_, request_.score_mod);
    ValueId keep = lower_mask(graph_, request_.mask);
    std::vector<bool> is_read(request_.params.size(), false);  // a parameter that only the mask reads has a gradient: zero
    for (ValueId id = 0; id < graph_.size(); ++id)
      if (graph_[id].op == Op::read) is_read[static_cast<std::size_t>(graph_[id].param)] = true;
    move_to_mask(graph_, score, keep);

    for (std::size_t i = 0; i < request_.params.size(); ++i) {
      const Param::Info& info = *request_.params[i].info();
      const bool trainable = wants_gradient(i);
      FOVEAL_CHECK(!trainable || info.type == Type::real, "parameter ", info.name, ": a gradient is wanted but it is ",
                   to_string(info.type), "; expected a real parameter");
      FOVEAL_CHECK(!trainable || is_read[i], "parameter ", info.name, ": a gradient is wanted but neither score_mod nor mask reads it");
      result_.params.push_back({info.name, info.shape, info.type, trainable, false});
    }
    if (score != graph_.symbol(Op::score)) result_.forward = graph_.program({score});
    if (keep != graph_.boolean(true)) result_.mask = graph_.program({keep});
    result_.text = "score_mod=" + print(graph_, score) + "; mask=" + print(graph_, keep);
    for (std::size_t i = 0; i < request_.params.size(); ++i) {
      result_.text += "; " + print(*request_.params[i].info()) + (wants_gradient(i) ? " trained" : "");
    }
    if (request_.backward) add_backward(score);
    return std::move(result_);
  }

 private:
  bool wants_gradient(std::size_t param) const { return param < request_.wants_gradient.size() && request_.wants_gradient[param]; }

  void check_request() const {
    FOVEAL_CHECK(request_.wants_gradient.empty() || request_.wants_gradient.size() == request_.params.size(),
                 "wants_gradient: ", request_.wants_gradient.size(), " entries; expected one for each of ", request_.params.size(),
                 " params");
    for (std::size_t i = 0; i < request_.params.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        FOVEAL_CHECK(request_.params[i].name() != request_.params[j].name(), "parameter ", request_.params[i].name(),
                     ": bound twice; expected one binding for each name");
  }

  /// The gradients of a row's scores sum to zero, so a parameter that only adds a term constant along kv has gradient zero.
  bool cancels_along_kv(ValueId read, ValueId factor) const {
    constexpr std::uint8_t varies = depends_kv | depends_score;
    return !request_.row_constant_terms_matter && ((graph_.depends(read) | graph_.depends(factor)) & varies) == 0;
  }

  void add_backward(ValueId score) {
    const base::IdVector<char> diagonal = functions_of_difference(graph_, score);
    Derivatives derivatives(graph_, score);
    const ValueId derivative = derivatives.by(graph_.symbol(Op::score));
    const ValueId dscore = derivative == zero_tangent ? graph_.real(0) : derivative;
    std::vector<ValueId> outputs{dscore};
    for (ParamInfo& param : result_.params) param.gradient_is_zero = param.trainable;
    for (ValueId read : reads_in(graph_, score)) {
      const Instr instr = graph_[read];
      ParamInfo& param = result_.params[static_cast<std::size_t>(instr.param)];
      if (!param.trainable) continue;
      const ValueId factor = derivatives.by(read);
      if (factor == zero_tangent || cancels_along_kv(read, factor)) continue;
      param.gradient_is_zero = false;
      TrainableRead trained{instr.param, instr.index, factor, Varies::uniform, has_own_elements(graph_, instr.index)};
      for (ValueId index : instr.index) {
        trained.over = join(trained.over, varies(graph_.depends(index), diagonal[index]));
        trained.reads_head |= graph_[index].op == Op::head;
        trained.reads_batch |= graph_[index].op == Op::batch;
      }
      outputs.push_back(factor);
      outputs.insert(outputs.end(), instr.index.begin(), instr.index.end());
      result_.reads.push_back(std::move(trained));
    }
    outputs.push_back(score);
    base::IdVector<ValueId> new_id;
    result_.backward = graph_.program(outputs, new_id);
    result_.dscore = new_id[dscore];
    result_.modified = new_id[score];
    for (TrainableRead& read : result_.reads) {
      read.factor = new_id[read.factor];
      for (ValueId& index : read.index) index = new_id[index];
    }
  }

  const Request& request_;
  Graph graph_;
  ScoreProgram result_;
};

/// Keeps the request alive: its key is made of addresses, which must not be reused.
struct Compiled {
  Request request;
  ScoreProgram program;
};

std::string identity(const Request& request) {
  std::string key{static_cast<char>(request.backward), static_cast<char>(request.row_constant_terms_matter)};
  const auto add = [&key](const void* address) { key.append(reinterpret_cast<const char*>(&address), sizeof(address)); };
  add(request.score_mod.node().get());
  add(request.mask.node().get());
  for (const Param& param : request.params) add(param.info().get());
  for (const bool wanted : request.wants_gradient) key += static_cast<char>(wanted);
  return key;
}

}  // namespace

ScoreProgram compile(const Request& request) { return Compiler(request)(); }

std::shared_ptr<const ScoreProgram> compile_once(const Request& request) {
  static auto& latest = *new base::LruCache<Compiled>(256);  // never destroyed: destructors of static objects may make calls
  const auto found = latest.find_or_make(identity(request), [&] { return Compiled{request, compile(request)}; });
  return {found, &found->program};
}

}  // namespace foveal::scoring
