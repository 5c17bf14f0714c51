// The C interface over the public C++ one: structs are translated, exceptions become codes.
#include "foveal/foveal_c.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "foveal/foveal.h"
#include "foveal/version.h"

namespace {

using namespace foveal;

static_assert(FOVEAL_F64 == static_cast<int>(DType::f64) && FOVEAL_BOOLEAN == static_cast<int>(DType::boolean));
static_assert(FOVEAL_CUDA == static_cast<int>(DeviceKind::cuda) && FOVEAL_BACKWARD == static_cast<int>(Pass::backward));
static_assert(FOVEAL_REPRODUCIBLE == static_cast<int>(Determinism::reproducible));
static_assert(FOVEAL_TWO_SCAN == static_cast<int>(BackwardStrategy::two_scan));
static_assert(FOVEAL_COMMUNICATION == static_cast<int>(ErrorCode::communication));
static_assert(FOVEAL_MAX_RANK == TensorView::max_rank);

thread_local std::string last_error;

/// Runs fn; an exception becomes its code and this thread's last error.
template <class Fn>
int guarded(Fn&& fn) noexcept {
  try {
    fn();
    return FOVEAL_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    last_error = error.what();
    return FOVEAL_INTERNAL;
  }
}

/// The size of each version of a struct but the last, which is its size now. A version's fields are the first ones of the next.
template <class Struct>
constexpr std::array<size_t, 0> earlier_sizes{};
template <>
constexpr std::array<size_t, 1> earlier_sizes<foveal_call>{offsetof(foveal_call, dropout_seed)};

/// A struct of this version from one of this or an earlier version; fields that it lacks are zero.
template <class Struct>
Struct adopted(const Struct* given, const char* name) {
  FOVEAL_CHECK(given != nullptr, name, ": null");
  const size_t size = given->struct_size;
  const auto& earlier = earlier_sizes<Struct>;
  FOVEAL_CHECK(size == sizeof(Struct) || std::find(earlier.begin(), earlier.end(), size) != earlier.end(), name, ": struct_size ", size,
               "; expected sizeof(foveal_", name, "), ", sizeof(Struct), " in this version of the library");
  Struct own{};
  std::memcpy(&own, given, size);
  return own;
}

template <class Enum>
Enum enumerator(const char* name, int32_t value, Enum last) {
  FOVEAL_CHECK(value >= 0 && value <= static_cast<int32_t>(last), name, ": ", value, "; expected 0 to ", static_cast<int>(last));
  return static_cast<Enum>(value);
}

TensorView view_of(const foveal_tensor* tensor) {
  TensorView view;
  if (tensor == nullptr) return view;
  FOVEAL_CHECK(tensor->rank >= 0 && tensor->rank <= FOVEAL_MAX_RANK, "tensor: rank ", tensor->rank, "; expected 0 to ", FOVEAL_MAX_RANK);
  view.data = tensor->data;
  view.dtype = enumerator("tensor: dtype", tensor->dtype, DType::boolean);
  view.device = {enumerator("tensor: device_kind", tensor->device_kind, DeviceKind::cuda), tensor->device_index};
  view.rank = tensor->rank;
  std::copy_n(tensor->sizes, tensor->rank, view.sizes.begin());
  std::copy_n(tensor->strides, tensor->rank, view.strides.begin());
  return view;
}

std::vector<Param> params_of(const foveal_call& call) {
  FOVEAL_CHECK(call.param_count >= 0 && (call.param_count == 0 || call.params != nullptr), "call: param_count ", call.param_count,
               " without params");
  std::vector<Param> params;
  for (int32_t i = 0; i < call.param_count; ++i) {
    FOVEAL_CHECK(call.params[i].declaration != nullptr, "params: parameter ", i, " has no declaration");
    FOVEAL_CHECK(call.params[i].tensor != nullptr, "params: parameter ", i, " has no tensor");
    params.push_back(parse_param(call.params[i].declaration));
  }
  return params;
}

Attention attention_of(const foveal_attention* given, const std::vector<Param>& params) {
  const foveal_attention a = adopted(given, "attention");
  Attention attention;
  if (a.score_mod != nullptr) attention.score_mod = parse(a.score_mod, params);
  if (a.mask != nullptr) attention.mask = parse(a.mask, params);
  if (a.scale != 0) attention.scale = a.scale;
  if (a.sink != nullptr) {
    const auto named = std::find_if(params.begin(), params.end(), [&](const Param& param) { return param.name() == a.sink; });
    FOVEAL_CHECK(named != params.end(), "sink: '", a.sink, "' is no parameter of the call");
    attention.sink = *named;
  }
  attention.dropout_p = a.dropout_p;
  attention.determinism = enumerator("determinism", a.determinism, Determinism::reproducible);
  attention.backward = enumerator("backward", a.backward, BackwardStrategy::two_scan);
  attention.checked = a.checked != 0;
  attention.q_offset = a.q_offset, attention.kv_offset = a.kv_offset;
  return attention;
}

bool is_first_version(const foveal_call& call) { return call.struct_size == offsetof(foveal_call, dropout_seed); }

/// What calls of the first version draw by.
DropoutRng rng_of(const foveal_attention* attention, const foveal_call& call) {
  const foveal_attention a = adopted(attention, "attention");
  FOVEAL_CHECK(is_first_version(call) || (a.reserved_seed == 0 && a.reserved_offset == 0), "attention: reserved_seed ", a.reserved_seed,
               ", reserved_offset ", a.reserved_offset, "; expected 0, for a call has its own dropout_seed and dropout_offset");
  return {.seed = a.reserved_seed, .offset = a.reserved_offset};
}

PlanOptions options_of(const foveal_options* given) {
  PlanOptions options;
  if (given == nullptr) return options;
  const foveal_options o = adopted(given, "options");
  if (o.backend != nullptr) options.backend = o.backend;
  if (o.target != nullptr) options.target = o.target;
  options.threads = o.threads;
  return options;
}

std::optional<Varlen> varlen_of(const foveal_call& call) {
  if (call.cu_seqlens_q == nullptr && call.cu_seqlens_kv == nullptr) return std::nullopt;
  return Varlen{.cu_seqlens_q = view_of(call.cu_seqlens_q),
                .cu_seqlens_kv = view_of(call.cu_seqlens_kv),
                .max_seqlen_q = call.max_seqlen_q,
                .max_seqlen_kv = call.max_seqlen_kv};
}

/// run(inputs, outputs) of the call's pass. first_rng: what a call of the first version draws by.
template <class Do>
void dispatch(const foveal_call& call, const std::vector<Param>& params, const DropoutRng& first_rng, Do&& run) {
  const Pass pass = enumerator("call: pass", call.pass, Pass::backward);
  FOVEAL_CHECK(static_cast<std::size_t>(call.param_count) == params.size(), "call: ", call.param_count, " parameters; the plan has ",
               params.size());
  std::vector<ParamBinding> tensors, gradients;
  tensors.reserve(params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    tensors.push_back({params[i], view_of(call.params[i].tensor)});
    if (call.params[i].gradient != nullptr) gradients.push_back({params[i], view_of(call.params[i].gradient)});
  }
  const DropoutRng rng = is_first_version(call)
                             ? first_rng
                             : DropoutRng{.seed = call.dropout_seed, .offset = call.dropout_offset, .state = view_of(call.dropout_state)};
  if (pass == Pass::forward) {
    run(ForwardInputs{.q = view_of(call.q),
                      .k = view_of(call.k),
                      .v = view_of(call.v),
                      .params = std::move(tensors),
                      .varlen = varlen_of(call),
                      .rng = rng},
        ForwardOutputs{.out = view_of(call.out), .lse = view_of(call.lse)});
  } else {
    run(BackwardInputs{.q = view_of(call.q),
                       .k = view_of(call.k),
                       .v = view_of(call.v),
                       .out = view_of(call.out),
                       .lse = view_of(call.lse),
                       .dout = view_of(call.dout),
                       .dlse = view_of(call.dlse),
                       .params = std::move(tensors),
                       .varlen = varlen_of(call),
                       .rng = rng},
        BackwardOutputs{.dq = view_of(call.dq), .dk = view_of(call.dk), .dv = view_of(call.dv), .dparams = std::move(gradients)});
  }
}

const std::vector<TargetInfo>& all_targets() {
  static const std::vector<TargetInfo> all = targets();
  return all;
}

}  // namespace

struct foveal_plan {
  Plan plan;
  std::vector<Param> params;
  DropoutRng first_rng;  ///< of calls of the first version
};

extern "C" {

int foveal_plan_create(const foveal_attention* attention, const foveal_call* call, const foveal_options* options, foveal_plan** plan) {
  return guarded([&] {
    FOVEAL_CHECK(plan != nullptr, "plan: null; expected a place for the plan");
    *plan = nullptr;
    const foveal_call own = adopted(call, "call");
    std::vector<Param> params = params_of(own);
    const Attention what = attention_of(attention, params);
    const PlanOptions how = options_of(options);
    Plan made;
    const DropoutRng first_rng = rng_of(attention, own);
    dispatch(own, params, first_rng, [&](const auto& inputs, const auto& outputs) { made = foveal::plan(what, inputs, outputs, how); });
    *plan = new foveal_plan{std::move(made), std::move(params), first_rng};
  });
}

void foveal_plan_destroy(foveal_plan* plan) { delete plan; }

size_t foveal_plan_workspace_bytes(const foveal_plan* plan) { return plan == nullptr ? 0 : plan->plan.workspace_bytes(); }

const char* foveal_plan_kernel(const foveal_plan* plan) { return plan == nullptr ? "" : plan->plan.kernel().c_str(); }

size_t foveal_plan_explain(const foveal_plan* plan, char* text, size_t size) {
  std::string whole;
  guarded([&] {
    FOVEAL_CHECK(plan != nullptr, "plan: null");
    whole = plan->plan.explain().to_string();
  });
  if (text != nullptr && size > 0) {
    const size_t length = std::min(size - 1, whole.size());
    std::memcpy(text, whole.data(), length);
    text[length] = '\0';
  }
  return whole.size();
}

int foveal_plan_run(const foveal_plan* plan, const foveal_call* call, void* workspace, void* stream) {
  return guarded([&] {
    FOVEAL_CHECK(plan != nullptr, "plan: null");
    dispatch(adopted(call, "call"), plan->params, plan->first_rng,
             [&](const auto& inputs, const auto& outputs) { plan->plan.run(inputs, outputs, workspace, Stream{stream}); });
  });
}

int foveal_run(const foveal_attention* attention, const foveal_call* call, const foveal_options* options, void* stream) {
  return guarded([&] {
    const foveal_call own = adopted(call, "call");
    const std::vector<Param> params = params_of(own);
    const Attention what = attention_of(attention, params);
    const PlanOptions how = options_of(options);
    dispatch(own, params, rng_of(attention, own), [&]<class Inputs, class Outputs>(const Inputs& inputs, const Outputs& outputs) {
      if constexpr (std::is_same_v<Inputs, ForwardInputs>)
        forward(what, inputs, outputs, Stream{stream}, how);
      else
        backward(what, inputs, outputs, Stream{stream}, how);
    });
  });
}

size_t foveal_target_count(void) {
  size_t count = 0;
  guarded([&] { count = all_targets().size(); });
  return count;
}

int foveal_target_get(size_t index, foveal_target* target) {
  return guarded([&] {
    FOVEAL_CHECK(target != nullptr, "target: null");
    FOVEAL_CHECK(index < all_targets().size(), "index: ", index, "; expected less than ", all_targets().size());
    const TargetInfo& info = all_targets()[index];
    *target = {.backend = info.backend.c_str(),
               .target = info.target.c_str(),
               .detail = info.detail.c_str(),
               .available = info.available,
               .reserved = 0};
  });
}

int foveal_set_num_threads(int32_t threads) {
  return guarded([&] { set_num_threads(threads); });
}

int32_t foveal_num_threads(void) { return num_threads(); }

const char* foveal_last_error(void) { return last_error.c_str(); }

const char* foveal_version(void) { return FOVEAL_VERSION; }

}  // extern "C"
