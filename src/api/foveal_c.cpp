// The C interface over the public C++ one: structs are translated, exceptions become codes.
#include "foveal/foveal_c.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "api/gradient_sum.h"
#include "base/check.h"
#include "cuda/jit/driver.h"
#include "foveal/foveal.h"
#include "foveal/version.h"

namespace {

using namespace foveal;

static_assert(FOVEAL_F32 == static_cast<int>(DType::f32) && FOVEAL_BOOLEAN == static_cast<int>(DType::boolean));
static_assert(static_cast<int>(DType::f64) == 0 && FOVEAL_F64 == FOVEAL_BOOLEAN + 1);  // dtype_of()
static_assert(FOVEAL_CUDA == static_cast<int>(DeviceKind::cuda) && FOVEAL_BACKWARD == static_cast<int>(Pass::backward));
static_assert(FOVEAL_REPRODUCIBLE == static_cast<int>(Determinism::reproducible));
static_assert(FOVEAL_TWO_SCAN == static_cast<int>(BackwardStrategy::two_scan));
static_assert(FOVEAL_COMMUNICATION == static_cast<int>(ErrorCode::communication));
static_assert(FOVEAL_MAX_RANK == TensorView::max_rank);

struct LastError {
  std::string text;
  const char* shown = "";

  void set(const char* message) noexcept {
    try {
      text = message;
      shown = text.c_str();
    } catch (...) {  // there is no memory for it
      shown = "out of memory";
    }
  }
};
thread_local LastError last_error;

/// Runs fn; an exception becomes its code and this thread's last error.
template <class Fn>
int guarded(Fn&& fn) noexcept {
  try {
    fn();
    return FOVEAL_OK;
  } catch (const Error& error) {
    last_error.set(error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    last_error.set(error.what());
  } catch (...) {
    last_error.set("an exception of another language or library");
  }
  return FOVEAL_INTERNAL;
}

/// The size of each version of a struct but the last, which is its size now. A version's fields are the first ones of the next.
template <class Struct>
constexpr std::array<size_t, 0> earlier_sizes{};
template <>
constexpr std::array<size_t, 1> earlier_sizes<foveal_call>{offsetof(foveal_call, dropout_seed)};

template <>
constexpr std::array<size_t, 1> earlier_sizes<foveal_options>{offsetof(foveal_options, exclude)};

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

DType dtype_of(int32_t dtype) {
  FOVEAL_CHECK(dtype != 0, "tensor: dtype is not set; expected FOVEAL_F32 or another");
  FOVEAL_CHECK(dtype > 0 && dtype <= FOVEAL_F64, "tensor: dtype: ", dtype, "; expected 1 to ", static_cast<int>(FOVEAL_F64));
  return dtype == FOVEAL_F64 ? DType::f64 : static_cast<DType>(dtype);
}

Device device_of(const foveal_tensor& tensor) {
  const DeviceKind kind = enumerator("tensor: device_kind", tensor.device_kind, DeviceKind::cuda);
  FOVEAL_CHECK(tensor.device_index >= -1, "tensor: device_index ", tensor.device_index,
               "; expected 0 or more, or -1 for the current device");
  if (tensor.device_index == -1) return {kind, kind == DeviceKind::cuda ? cuda::driver::current_device() : 0};
  return {kind, tensor.device_index};
}

TensorView view_of(const foveal_tensor* tensor) {
  TensorView view;
  if (tensor == nullptr) return view;
  FOVEAL_CHECK(tensor->rank >= 0 && tensor->rank <= FOVEAL_MAX_RANK, "tensor: rank ", tensor->rank, "; expected 0 to ", FOVEAL_MAX_RANK);
  view.data = tensor->data;
  view.dtype = dtype_of(tensor->dtype);
  view.device = device_of(*tensor);
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
  if (o.exclude != nullptr) options.exclude = o.exclude;
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

bool accumulates(const foveal_attention* given) {
  const foveal_attention a = adopted(given, "attention");
  FOVEAL_CHECK(a.accumulate == 0 || a.accumulate == 1, "attention: accumulate ", a.accumulate, "; expected 0 or 1");
  return a.accumulate == 1;
}

/// run(inputs, outputs), whose gradients are added to those of the call where it accumulates.
template <class Inputs, class Outputs, class Run>
void run_into(bool accumulate, const Inputs& inputs, const Outputs& outputs, Run&& run) {
  if constexpr (std::is_same_v<Outputs, BackwardOutputs>) {
    if (accumulate) {
      api::GradientSum sum(outputs);
      sum.allocate();
      run(inputs, sum.parts());
      sum.add();
      return;
    }
  }
  run(inputs, outputs);
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
  bool accumulates;
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
    const bool accumulate = accumulates(attention);
    dispatch(own, params, first_rng, [&]<class Inputs, class Outputs>(const Inputs& inputs, const Outputs& outputs) {
      if constexpr (std::is_same_v<Outputs, BackwardOutputs>) {
        if (accumulate) return void(made = foveal::plan(what, inputs, api::GradientSum(outputs).parts(), how));
      }
      made = foveal::plan(what, inputs, outputs, how);
    });
    *plan = new foveal_plan{std::move(made), std::move(params), first_rng, accumulate};
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
    dispatch(adopted(call, "call"), plan->params, plan->first_rng, [&](const auto& inputs, const auto& outputs) {
      run_into(plan->accumulates, inputs, outputs,
               [&](const auto& in, const auto& out) { plan->plan.run(in, out, workspace, Stream{stream}); });
    });
  });
}

int foveal_run(const foveal_attention* attention, const foveal_call* call, const foveal_options* options, void* stream) {
  return guarded([&] {
    const foveal_call own = adopted(call, "call");
    const std::vector<Param> params = params_of(own);
    const Attention what = attention_of(attention, params);
    const PlanOptions how = options_of(options);
    dispatch(own, params, rng_of(attention, own), [&](const auto& inputs, const auto& outputs) {
      run_into(accumulates(attention), inputs, outputs, [&]<class Inputs, class Outputs>(const Inputs& in, const Outputs& out) {
        if constexpr (std::is_same_v<Inputs, ForwardInputs>)
          forward(what, in, out, Stream{stream}, how);
        else
          backward(what, in, out, Stream{stream}, how);
      });
    });
  });
}

int foveal_contiguous(foveal_tensor* tensor, void* data, int32_t dtype, int32_t rank, const int64_t* sizes) {
  return guarded([&] {
    FOVEAL_CHECK(tensor != nullptr, "tensor: null; expected a place for the tensor");
    dtype_of(dtype);
    FOVEAL_CHECK(rank >= 0 && rank <= FOVEAL_MAX_RANK, "rank: ", rank, "; expected 0 to ", FOVEAL_MAX_RANK);
    FOVEAL_CHECK(rank == 0 || sizes != nullptr, "sizes: null; expected ", rank, " sizes");
    foveal_tensor made{
        .data = data, .dtype = dtype, .device_kind = FOVEAL_CPU, .device_index = 0, .rank = rank, .sizes = {}, .strides = {}};
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      FOVEAL_CHECK(sizes[d] >= 0, "sizes: ", sizes[d], " of dimension ", d, "; expected 0 or more");
      made.sizes[d] = sizes[d], made.strides[d] = stride;
      FOVEAL_CHECK(!__builtin_mul_overflow(stride, sizes[d], &stride), "sizes: more than 2^63 elements");
    }
    *tensor = made;
  });
}

int foveal_packed_qkv(foveal_tensor qkv[3], void* data, int32_t dtype, int64_t batch, int64_t seqlen, int64_t channels, int64_t heads) {
  return guarded([&] {
    FOVEAL_CHECK(qkv != nullptr, "qkv: null; expected a place for three tensors");
    FOVEAL_CHECK(batch >= 0 && seqlen >= 0, "batch ", batch, ", seqlen ", seqlen, "; expected 0 or more");
    FOVEAL_CHECK(heads > 0 && channels > 0 && channels % heads == 0, "channels: ", channels, " with ", heads,
                 " heads; expected a multiple of heads");
    int64_t elements = 3;
    for (const int64_t size : {batch, seqlen, channels})
      FOVEAL_CHECK(!__builtin_mul_overflow(elements, size, &elements), "qkv: more than 2^63 elements");
    const int64_t head_dim = channels / heads;
    for (int i = 0; i < 3; ++i) {
      char* first = static_cast<char*>(data);
      if (first != nullptr) first += i * channels * static_cast<int64_t>(size_of(dtype_of(dtype)));
      qkv[i] = {.data = first,
                .dtype = dtype,
                .device_kind = FOVEAL_CPU,
                .device_index = 0,
                .rank = 4,
                .sizes = {batch, seqlen, heads, head_dim, 0, 0},
                .strides = {seqlen * 3 * channels, 3 * channels, head_dim, 1, 0, 0}};
    }
    dtype_of(dtype);
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

const char* foveal_last_error(void) { return last_error.shown; }

const char* foveal_version(void) { return FOVEAL_VERSION; }

}  // extern "C"
