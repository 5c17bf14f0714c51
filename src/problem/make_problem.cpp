// Checks a call, except its data, and brings it into normal form.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"
#include "base/enum_name.h"
#include "base/wide_type.h"
#include "problem/checks.h"
#include "problem/overlap.h"

namespace foveal::problem {

TensorSpec spec_of(const TensorView& logical) {
  return {.present = true,
          .dtype = logical.dtype,
          .rank = logical.rank,
          .sizes = logical.sizes,
          .strides = logical.strides,
          .aligned = is_aligned(logical)};
}

void check_dtype(const char* name, DType found, DType expected, const char* why) {
  FOVEAL_CHECK(found == expected, name, ": dtype ", to_string(found), "; expected ", to_string(expected), ", ", why);
}

void check_reach(const char* name, const TensorView& view) {
  base::check_enumerator({name, "dtype of "}, view.dtype, DType::boolean);
  constexpr std::int64_t max_bytes = std::int64_t{1} << 60;
  std::int64_t elements = 1, reach = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    const std::int64_t size = view.sizes[d], stride = view.strides[d];
    FOVEAL_CHECK(!__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements) && elements <= most_elements, name,
                 ": shape ", shape_text(view.sizes.data(), view.rank), " has too many elements; expected at most 2^48");
    std::int64_t steps = 0;
    if (size <= 1) continue;
    FOVEAL_CHECK(!__builtin_mul_overflow(stride, size - 1, &steps) &&
                     !__builtin_mul_overflow(steps, static_cast<std::int64_t>(size_of(view.dtype)), &steps) &&
                     steps != std::numeric_limits<std::int64_t>::min() && !__builtin_add_overflow(reach, std::abs(steps), &reach) &&
                     reach <= max_bytes,
                 name, ": strides ", shape_text(view.strides.data(), view.rank), " reach too far; expected at most 2^60 bytes");
  }
}

namespace {

/// The spec of a tensor that is present, of the right rank, not empty, and on q's device.
TensorSpec checked_spec(const RoleRow& role, const TensorView& view, const Call& call) {
  const char* name = role.name;
  const Tokens tokens = call.tokens_of(role);
  const int rank = role.axes.rank - (tokens == Tokens::packed ? 1 : 0);
  FOVEAL_CHECK(view.present(), name, ": absent; expected ", axes_text(role.axes, tokens));
  FOVEAL_CHECK(view.rank == rank, name, ": rank ", view.rank, "; expected ", rank, " ", axes_text(role.axes, tokens));
  for (int d = 0; d < rank; ++d)
    FOVEAL_CHECK(view.sizes[static_cast<std::size_t>(d)] >= 1, name, ": size ", view.sizes[static_cast<std::size_t>(d)], " in dimension ",
                 d, "; expected at least 1");
  check_device(name, view, call);
  check_reach(name, view);
  return spec_of(logical_view(view, tokens == Tokens::packed));
}

void check_shape(const char* name, const TensorSpec& spec, const std::vector<std::int64_t>& expected) {
  const bool same = std::equal(expected.begin(), expected.end(), spec.sizes.begin());
  FOVEAL_CHECK(same, name, ": shape ", shape_text(spec.sizes.data(), spec.rank), "; expected ", shape_text(expected));
}

/// q, k and v, which determine all sizes.
void read_sizes(Problem& p, const Call& call) {
  p.paged = call.paged != nullptr;
  p.q = checked_spec(roles[0], *call.q, call);
  p.dtype = p.q.dtype;
  FOVEAL_CHECK(is_floating(p.dtype), "q: dtype ", to_string(p.dtype), "; expected f64, f32, bf16 or f16");
  p.batch = p.q.sizes[0], p.total_q = p.q.sizes[0] * p.q.sizes[1], p.heads_q = p.heads_kv = p.q.sizes[2];
  p.seqlen_q = p.seqlen_kv = p.q.sizes[1], p.head_dim = p.head_dim_v = p.q.sizes[3];

  p.k = checked_spec(roles[1], *call.k, call);
  p.total_kv = p.k.sizes[0] * p.k.sizes[1], p.seqlen_kv = p.k.sizes[1], p.heads_kv = p.k.sizes[2];
  p.v = checked_spec(roles[2], *call.v, call);
  p.head_dim_v = p.v.sizes[3];

  check_dtype("k", p.k.dtype, p.dtype, "q's");
  check_dtype("v", p.v.dtype, p.dtype, "q's");
  if (p.paged) {
    FOVEAL_CHECK(p.k.sizes[1] % 16 == 0, "k: page_size ", p.k.sizes[1], " in dimension 1; expected a multiple of 16");
    FOVEAL_CHECK(p.v.sizes[0] == p.k.sizes[0], "v: pages ", p.v.sizes[0], " differ from k's ", p.k.sizes[0]);
    FOVEAL_CHECK(p.v.sizes[1] == p.k.sizes[1], "v: page_size ", p.v.sizes[1], " differs from k's ", p.k.sizes[1]);
  } else {
    FOVEAL_CHECK(p.k.sizes[0] == p.batch, "k: batch ", p.k.sizes[0], " differs from q's ", p.batch);
    FOVEAL_CHECK(p.v.sizes[0] == p.batch, "v: batch ", p.v.sizes[0], " differs from q's ", p.batch);
  }
  FOVEAL_CHECK(p.heads_q % p.heads_kv == 0, "k: heads ", p.heads_kv, " does not divide q's ", p.heads_q, "; expected a divisor of ",
               p.heads_q);
  FOVEAL_CHECK(p.k.sizes[3] == p.head_dim, "k: head_dim ", p.k.sizes[3], " differs from q's ", p.head_dim);
  FOVEAL_CHECK(p.v.sizes[2] == p.heads_kv, "v: heads ", p.v.sizes[2], " differs from k's ", p.heads_kv);
  FOVEAL_CHECK(p.v.sizes[1] == p.k.sizes[1], call.packed() ? "v: total " : "v: seqlen ", p.v.sizes[1], " differs from k's ", p.k.sizes[1]);
  p.group_size = p.heads_q / p.heads_kv;
}

/// Before products with it are formed.
void check_batch(const Problem& p) {
  FOVEAL_CHECK(p.batch <= max_position / p.heads_q, "q: batch ", p.batch, " times heads ", p.heads_q, "; expected at most ", max_position);
}

void check_limits(const Problem& p) {
  const Attention& a = p.attention;
  FOVEAL_CHECK(a.q_offset >= 0, "q_offset: ", a.q_offset, "; expected 0 or more");
  FOVEAL_CHECK(a.kv_offset >= 0, "kv_offset: ", a.kv_offset, "; expected 0 or more");
  const std::int64_t last_q = std::max(p.seqlen_q, p.varlen ? p.total_q : 0), last_kv = p.longest_kv();
  FOVEAL_CHECK(last_q <= max_position && a.q_offset <= max_position - last_q, "q: last position ", a.q_offset, " + ", last_q,
               "; expected at most ", max_position);
  FOVEAL_CHECK(last_kv <= max_position && a.kv_offset <= max_position - last_kv, "k: last position ", a.kv_offset, " + ", last_kv,
               "; expected at most ", max_position);
  // max_seqlen may exceed the tensors; workspaces hold a few times as many rows.
  const std::int64_t dims = p.head_dim + p.head_dim_v, rows = std::max(last_q, last_kv);
  FOVEAL_CHECK(rows <= most_elements / dims, "max_seqlen_q, max_seqlen_kv: sequences of ", rows, " times head_dim ", dims,
               "; expected at most 2^48");
  FOVEAL_CHECK(std::isfinite(p.scale), "scale: ", p.scale, "; expected a finite number");
  // Scores are of this type, and infinity times 0 is none.
  FOVEAL_CHECK(base::wide_type(p.dtype) == DType::f64 || std::abs(p.scale) <= std::numeric_limits<float>::max(), "scale: ", p.scale,
               "; expected at most ", std::numeric_limits<float>::max(), " for ", to_string(p.dtype), ", whose scores are f32");
  FOVEAL_CHECK(a.dropout_p >= 0 && a.dropout_p < 1, "dropout_p: ", a.dropout_p, "; expected 0 <= p < 1");
}

/// Sizes of a tensor in its logical form.
std::vector<std::int64_t> sizes_of(const Problem& p, const Axes& axes) {
  AxisSizes sizes{};
  sizes[Axis::batch_q] = p.q.sizes[0], sizes[Axis::seqlen_q] = p.q.sizes[1];
  sizes[Axis::batch_kv] = p.k.sizes[0], sizes[Axis::seqlen_kv] = p.k.sizes[1];
  sizes[Axis::heads_q] = p.heads_q, sizes[Axis::heads_kv] = p.heads_kv;
  sizes[Axis::head_dim] = p.head_dim, sizes[Axis::head_dim_v] = p.head_dim_v;
  sizes[Axis::sequences] = p.batch, sizes[Axis::sequences_plus_one] = p.batch + 1, sizes[Axis::pages] = p.block_table.sizes[1];
  return sizes.of(axes);
}

void check_role_dtype(const Problem& p, const Role& role, DType found, bool output) {
  const DType statistics = base::wide_type(p.dtype);
  if (role.type == RoleType::statistics)
    return check_dtype(role.name, found, p.merges() && output ? DType::f64 : statistics, "the type of statistics for these inputs");
  if (p.keeps_rows && role.spec == &Problem::dq) return check_dtype(role.name, found, p.dtype, "q's");
  if (p.merges() && output) return check_dtype(role.name, found, statistics, "the type in which parts are added");
  const bool wide = output && found == DType::f32 && (p.dtype == DType::bf16 || p.dtype == DType::f16);
  if (!wide) check_dtype(role.name, found, p.dtype, "q's");
}

/// Tensors whose sizes follow from q, k and v.
void read_results(Problem& p, const Call& call) {
  for (const Role& role : roles) {
    TensorSpec& spec = p.*role.spec;
    const TensorView* view = call.*role.given;
    if (spec.present || view == nullptr || role.integers() || (!view->present() && role.optional(call.pass))) continue;
    const std::vector<std::int64_t> sizes = sizes_of(p, role.axes);
    spec = checked_spec(role, *view, call);
    check_shape(role.name, spec, sizes);
    const bool output = role.output(call.pass);
    if (output)
      FOVEAL_CHECK(!overlaps_itself(spec), role.name, ": strides ", shape_text(spec.strides.data(), spec.rank),
                   " put two elements in one place; an output's elements must be apart");
    check_role_dtype(p, role, spec.dtype, output);
  }
}

/// Whether a parameter of this type may be bound to a tensor of this dtype.
bool accepts(Type type, DType dtype) {
  if (type == Type::real) return is_floating(dtype);
  return type == Type::integer ? base::is_integral(dtype) : dtype == DType::boolean || dtype == DType::u8;
}
const char* accepted_dtypes(Type type) {
  return base::enum_name(type, {"boolean or u8", "i64, i32, i16, i8 or u8", "f64, f32, bf16 or f16"});
}

TensorSpec param_spec(const std::string& what, const Param& param, const TensorView& tensor, const Call& call) {
  const std::vector<std::int64_t>& shape = param.shape();
  const bool same = tensor.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), tensor.sizes.begin());
  FOVEAL_CHECK(same, what, ": shape ", shape_text(tensor.sizes.data(), tensor.rank), "; expected ", shape_text(shape), " as declared");
  check_device(what.c_str(), tensor, call);
  check_reach(what.c_str(), tensor);
  return spec_of(logical_view(tensor, false));
}

void read_params(Problem& p, const Call& call) {
  for (const ParamBinding& binding : *call.params) {
    FOVEAL_CHECK(binding.param.present(), "params: a binding without a parameter");
    const std::string what = "parameter " + binding.param.name();
    for (const ParamSpec& other : p.params) FOVEAL_CHECK(other.param.name() != binding.param.name(), what, ": bound twice");
    const TensorSpec spec = param_spec(what, binding.param, binding.tensor, call);
    FOVEAL_CHECK(accepts(binding.param.type(), spec.dtype), what, ": dtype ", to_string(spec.dtype), "; expected ",
                 accepted_dtypes(binding.param.type()), " for a parameter of type ", to_string(binding.param.type()));
    p.params.push_back({.param = binding.param, .tensor = spec, .gradient = {}});
  }
}

void read_param_gradients(Problem& p, const Call& call) {
  if (call.dparams == nullptr) return;
  for (const ParamBinding& wanted : *call.dparams) {
    FOVEAL_CHECK(wanted.param.present(), "dparams: a binding without a parameter");
    const std::string what = "gradient of parameter " + wanted.param.name();
    const auto bound =
        std::find_if(p.params.begin(), p.params.end(), [&](const ParamSpec& spec) { return spec.param.name() == wanted.param.name(); });
    FOVEAL_CHECK(bound != p.params.end(), what, ": the parameter is not bound in params");
    FOVEAL_CHECK(!bound->gradient.present, what, ": wanted twice");
    FOVEAL_CHECK(bound->param.type() == Type::real, what, ": a parameter of type ", to_string(bound->param.type()),
                 " has no gradient; expected a real one");
    const TensorSpec spec = param_spec(what, bound->param, wanted.tensor, call);
    const DType own = bound->tensor.dtype;
    FOVEAL_CHECK(spec.dtype == DType::f32 || spec.dtype == DType::f64 || spec.dtype == own, what, ": dtype ", to_string(spec.dtype),
                 "; expected f32, f64 or the parameter's own ", to_string(own));
    FOVEAL_CHECK(!overlaps_itself(spec), what, ": strides ", shape_text(spec.strides.data(), spec.rank),
                 " put two elements in one place; an output's elements must be apart");
    bound->gradient = spec;
  }
}

void read_sink(Problem& p) {
  if (!p.attention.sink) return;
  const Param& sink = *p.attention.sink;
  FOVEAL_CHECK(sink.present(), "sink: a Param without a name");
  FOVEAL_CHECK(sink.type() == Type::real, "sink: parameter ", sink.name(), " is ", to_string(sink.type()), "; expected real");
  FOVEAL_CHECK(sink.shape() == std::vector<std::int64_t>{p.heads_q}, "sink: parameter ", sink.name(), " has shape ",
               shape_text(sink.shape()), "; expected [", p.heads_q, "], one logit per query head");
  for (std::size_t i = 0; i < p.params.size(); ++i)
    if (p.params[i].param.name() == sink.name()) p.sink = static_cast<int>(i);
  FOVEAL_CHECK(p.sink >= 0, "sink: parameter ", sink.name(), " is not bound in params");
  FOVEAL_CHECK(p.param(p.sink).param.shape() == sink.shape(), "sink: parameter ", sink.name(), " is bound with another shape");
}

void check_something_is_wanted(const Problem& p) {
  FOVEAL_CHECK(!p.merges() || p.lse.present, "lse: absent; a part needs it, for it says what its rows weigh");
  const bool wanted = p.pass == Pass::forward || p.dq.present || p.dk.present || p.dv.present ||
                      std::any_of(p.params.begin(), p.params.end(), [](const ParamSpec& spec) { return spec.gradient.present; });
  FOVEAL_CHECK(wanted, "outputs: no gradient is asked for; expected at least one of dq, dk, dv and gradients of parameters");
}

/// Values that callers can make by a cast.
void check_enumerators(const Attention& attention, const Call& call) {
  base::check_enumerator({"determinism"}, attention.determinism, Determinism::reproducible);
  base::check_enumerator({"backward"}, attention.backward, BackwardStrategy::two_scan);
  const DeviceKind kind = call.q->device.kind;
  FOVEAL_CHECK(kind <= DeviceKind::cuda, "q: device kind ", static_cast<int>(kind), "; expected DeviceKind::cpu or DeviceKind::cuda");
}

Problem make(const Attention& attention, const Call& call) {
  check_enumerators(attention, call);
  Problem p;
  p.pass = call.pass, p.device = call.q->device, p.attention = attention;
  try {
    read_sizes(p, call);
    read_varlen(p, call);
    check_batch(p);
    read_paged(p, call);
    read_part(p, call);
    p.scale = attention.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
    check_limits(p);
    read_results(p, call);
    read_params(p, call);
    read_param_gradients(p, call);
    read_sink(p);
    check_something_is_wanted(p);
    compile_score(p);
  } catch (const Error& error) {
    if (p.head_dim == 0) throw;  // the sizes have not been read
    base::fail(error.code(), error.what(), " [", headline(p), "]");
  }
  return p;
}

}  // namespace

Problem make_problem(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs) {
  return make(attention, call_of(inputs, outputs));
}

Problem make_problem(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  return make(attention, call_of(inputs, outputs));
}

}  // namespace foveal::problem
