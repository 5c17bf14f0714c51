#include "problem/line_problem.h"

#include "base/strided.h"
#include "problem/call.h"

namespace foveal::problem {
namespace {

/// Whether the line's pass has this tensor.
bool is_given(const Line& line, const Role& role) {
  if (role.use(line.pass) == Use::none) return false;
  if (role.spec == &Problem::cu_seqlens_q) return line.varlen;
  if (role.spec == &Problem::cu_seqlens_kv) return line.varlen && !line.paged();
  if (role.integers()) return line.paged();
  if (role.spec == &Problem::lse) return line.pass == Pass::backward || line.lse;
  if (role.spec == &Problem::dlse) return line.dlse;
  if (role.spec == &Problem::dq) return line.dq;
  if (role.spec == &Problem::dk) return line.dk;
  return role.spec != &Problem::dv || line.dv;
}

}  // namespace

Problem problem_of(const Line& line, Device device) {
  alignas(16) static char scalar = 0;  // a rank-0 tensor is present by its data, which must be aligned as a GPU allocation is
  const auto view_of = [&](DType dtype, const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
    TensorView view;
    view.dtype = dtype, view.device = device, view.rank = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), view.sizes.begin());
    std::copy(strides.begin(), strides.end(), view.strides.begin());
    return view;
  };
  const auto param_of = [&](const ParamLine& param, DType dtype) {
    const std::vector<std::int64_t>& shape = param.param.shape();
    ParamBinding binding{param.param, view_of(dtype, shape, row_major_strides(shape))};
    binding.tensor.data = &scalar;
    return binding;
  };
  std::array<TensorView, role_table::all.size()> views;
  Call call{.pass = line.pass};
  for (std::size_t i = 0; i < roles.size(); ++i) {
    if (!is_given(line, roles[i])) continue;
    const std::vector<std::int64_t> sizes = role_sizes(line, roles[i].name);
    views[i] = public_view(line, roles[i], view_of(role_dtype(line, roles[i]), sizes, layout_strides(line, roles[i].name)));
    call.*roles[i].given = &views[i];
  }
  CallRest rest;
  if (line.varlen) rest.max_seqlen_q = line.seqlen_q, rest.max_seqlen_kv = line.seqlen_kv;
  for (const ParamLine& param : line.params) {
    rest.params.push_back(param_of(param, param.dtype));
    if (param.grad && line.pass == Pass::backward) rest.dparams.push_back(param_of(param, param.grad_dtype));
  }
  Problem problem;
  with_arguments(call, std::move(rest),
                 [&](const auto& inputs, const auto& outputs) { problem = make_problem(line.attention, inputs, outputs); });
  return problem;
}

}  // namespace foveal::problem
