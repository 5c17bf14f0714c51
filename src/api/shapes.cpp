// Planning from sizes alone: contiguous tensors without data, every parameter that the attention names, all gradients.
#include <algorithm>
#include <unordered_set>
#include <vector>

#include "base/enum_name.h"
#include "base/strided.h"
#include "base/wide_type.h"
#include "foveal/attention.h"
#include "score/node.h"

namespace foveal {
namespace {

TensorView contiguous(const std::vector<std::int64_t>& sizes, DType dtype, Device device) {
  FOVEAL_CHECK(sizes.size() <= TensorView::max_rank, "parameter: rank ", sizes.size(), "; expected at most ", TensorView::max_rank);
  TensorView view;
  view.dtype = dtype, view.device = device, view.rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), view.sizes.begin());
  base::make_contiguous(view);
  return view;
}

/// Adds the parameters of an expression that are not in the list yet, in the order of first reads.
void collect(const Expr& expr, std::vector<Param>& params) {
  if (!expr.present()) return;
  std::vector<const scoring::Node*> open{expr.node().get()};
  std::unordered_set<const scoring::Node*> seen;
  while (!open.empty()) {
    const scoring::Node* node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    for (auto arg = node->args.rbegin(); arg != node->args.rend(); ++arg) open.push_back(arg->get());
    if (node->param == nullptr) continue;
    const auto is_it = [&](const Param& param) { return param.name() == node->param->name; };
    if (std::none_of(params.begin(), params.end(), is_it)) params.emplace_back(node->param->name, node->param->shape, node->param->type);
  }
}

DType dtype_of(const Param& param, DType real) {
  return param.type() == Type::real ? real : param.type() == Type::integer ? DType::i32 : DType::boolean;
}

}  // namespace

Plan plan(const Attention& attention, const Shapes& s, Pass pass, Device device, const PlanOptions& options) {
  base::check_enumerator({"pass"}, pass, Pass::backward);
  const DType statistics = base::wide_type(s.dtype);
  const auto view = [&](std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return contiguous({s.batch, rows, heads, dim}, s.dtype, device);
  };
  const TensorView q = view(s.seqlen_q, s.heads_q, s.head_dim), out = view(s.seqlen_q, s.heads_q, s.head_dim_v);
  const TensorView k = view(s.seqlen_kv, s.heads_kv, s.head_dim), v = view(s.seqlen_kv, s.heads_kv, s.head_dim_v);
  const TensorView lse = contiguous({s.batch, s.heads_q, s.seqlen_q}, statistics, device);

  std::vector<Param> all, trained;
  collect(attention.score_mod, trained);
  if (attention.sink) trained.push_back(*attention.sink);
  all = trained;
  collect(attention.mask, all);
  std::vector<ParamBinding> params, dparams;
  for (const Param& param : all) params.push_back({param, contiguous(param.shape(), dtype_of(param, statistics), device)});
  for (const Param& param : trained)
    if (param.type() == Type::real) dparams.push_back({param, contiguous(param.shape(), statistics, device)});

  if (pass == Pass::forward)
    return plan(attention, ForwardInputs{.q = q, .k = k, .v = v, .params = params}, ForwardOutputs{.out = out, .lse = lse}, options);
  return plan(attention, BackwardInputs{.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = out, .params = params},
              BackwardOutputs{.dq = q, .dk = k, .dv = v, .dparams = dparams}, options);
}

}  // namespace foveal
