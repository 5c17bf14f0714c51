#include "problem/line_problem.h"

namespace foveal::problem {

Problem problem_of(const Line& line, Device device) {
  const auto view = [&](const char* role, DType dtype) {
    TensorView v;
    v.dtype = dtype;
    v.device = device;
    const auto sizes = role_sizes(line, role);
    const bool statistics = std::string(role) == "lse" || std::string(role) == "dlse";
    const bool of_keys = std::string(role).ends_with("k") || std::string(role).ends_with("v");
    const std::size_t first = line.varlen && !(line.paged() && of_keys) ? 1 : 0;  // packed tensors have no batch
    std::int64_t stride = 1;
    v.rank = static_cast<int>(sizes.size() - first);
    std::vector<std::int64_t> strides(sizes.size());
    if (statistics) {
      for (std::size_t d = sizes.size(); d-- > 0;) strides[d] = stride, stride *= sizes[d];
    } else {
      strides = layout_strides(line, role);
    }
    for (std::size_t d = first; d < sizes.size(); ++d) v.sizes[d - first] = sizes[d], v.strides[d - first] = strides[d];
    return v;
  };
  const auto statistics = [&](const char* role) { return view(role, line.dtype == DType::f64 ? DType::f64 : DType::f32); };
  const auto contiguous = [&](DType dtype, const std::vector<std::int64_t>& sizes) {
    TensorView v;
    v.dtype = dtype;
    v.device = device;
    v.rank = static_cast<int>(sizes.size());
    std::int64_t stride = 1;
    for (std::size_t d = sizes.size(); d-- > 0;) v.sizes[d] = sizes[d], v.strides[d] = stride, stride *= sizes[d];
    alignas(16) static char scalar = 0;  // as allocations on a GPU are: what begins elsewhere takes other paths
    v.data = &scalar;                    // a rank-0 tensor is present by its data
    return v;
  };
  std::vector<ParamBinding> params, gradients;
  for (const ParamLine& param : line.params) {
    params.push_back({param.param, contiguous(param.dtype, param.param.shape())});
    if (param.grad) gradients.push_back({param.param, contiguous(param.grad_dtype, param.param.shape())});
  }
  std::optional<Varlen> varlen;
  if (line.varlen) {
    const TensorView cu = contiguous(line.cu_seqlens_dtype, {line.batch + 1});
    varlen = Varlen{cu, line.paged() ? TensorView{} : cu, line.seqlen_q, line.seqlen_kv};
  }
  std::optional<Paged> paged;
  if (line.paged())
    paged = Paged{contiguous(DType::i32, {line.batch, line.table_pages()}), contiguous(line.cu_seqlens_dtype, {line.batch})};
  if (line.pass == Pass::forward) {
    return make_problem(line.attention,
                        ForwardInputs{.q = view("q", line.dtype),
                                      .k = view("k", line.dtype),
                                      .v = view("v", line.dtype),
                                      .params = params,
                                      .varlen = varlen,
                                      .paged = paged},
                        ForwardOutputs{view("out", line.dtype), line.lse ? statistics("lse") : TensorView{}});
  }
  BackwardInputs inputs{view("q", line.dtype),   view("k", line.dtype), view("v", line.dtype),
                        view("out", line.dtype), statistics("lse"),     view("dout", line.dtype)};
  if (line.dlse) inputs.dlse = statistics("dlse");
  inputs.params = params;
  inputs.varlen = varlen, inputs.paged = paged;
  BackwardOutputs outputs;
  if (line.dq) outputs.dq = view("dq", line.dtype);
  if (line.dk) outputs.dk = view("dk", line.dtype);
  if (line.dv) outputs.dv = view("dv", line.dtype);
  outputs.dparams = gradients;
  return make_problem(line.attention, inputs, outputs);
}

}  // namespace foveal::problem
