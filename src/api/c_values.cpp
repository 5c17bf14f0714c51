#include "api/c_values.h"

#include <algorithm>
#include <cstring>

#include "base/lru_cache.h"
#include "cuda/jit/driver.h"
#include "problem/roles.h"
#include "score/parse.h"

namespace foveal::c {

static_assert(FOVEAL_F32 == static_cast<int>(DType::f32) && FOVEAL_BOOLEAN == static_cast<int>(DType::boolean));
static_assert(static_cast<int>(DType::f64) == 0 && FOVEAL_F64 == FOVEAL_BOOLEAN + 1);  // dtype_of()
static_assert(FOVEAL_CUDA == static_cast<int>(DeviceKind::cuda) && FOVEAL_BACKWARD == static_cast<int>(Pass::backward));
static_assert(FOVEAL_REPRODUCIBLE == static_cast<int>(Determinism::reproducible));
static_assert(FOVEAL_TWO_SCAN == static_cast<int>(BackwardStrategy::two_scan));
static_assert(FOVEAL_COMMUNICATION == static_cast<int>(ErrorCode::communication));
static_assert(FOVEAL_MAX_RANK == TensorView::max_rank);

// foveal_call has a tensor for each role.
#define FOVEAL_HAS(name, ...) static_assert(std::is_same_v<decltype(foveal_call::name), const foveal_tensor*>);
FOVEAL_ROLES(FOVEAL_HAS)
#undef FOVEAL_HAS

DType dtype_of(Named at, int32_t dtype) {
  FOVEAL_CHECK(dtype != 0, at.what, at.name, ": dtype is not set; expected FOVEAL_F32 or another");
  FOVEAL_CHECK(dtype > 0 && dtype <= FOVEAL_F64, at.what, at.name, ": dtype ", dtype, "; expected 1 to ", static_cast<int>(FOVEAL_F64));
  return dtype == FOVEAL_F64 ? DType::f64 : static_cast<DType>(dtype);
}

static Device device_of(Named at, const foveal_tensor& tensor) {
  FOVEAL_CHECK(tensor.device_kind == FOVEAL_CPU || tensor.device_kind == FOVEAL_CUDA, at.what, at.name, ": device_kind ",
               tensor.device_kind, "; expected FOVEAL_CPU or FOVEAL_CUDA, 0 or 1");
  const auto kind = static_cast<DeviceKind>(tensor.device_kind);
  FOVEAL_CHECK(tensor.device_index >= -1, at.what, at.name, ": device_index ", tensor.device_index,
               "; expected 0 or more, or -1 for the current device");
  if (tensor.device_index == -1) return {kind, kind == DeviceKind::cuda ? cuda::driver::current_device() : 0};
  return {kind, tensor.device_index};
}

TensorView view_of(Named at, const foveal_tensor* tensor) {
  TensorView view;
  if (tensor == nullptr) return view;
  FOVEAL_CHECK(tensor->rank >= 0 && tensor->rank <= FOVEAL_MAX_RANK, at.what, at.name, ": rank ", tensor->rank, "; expected 0 to ",
               FOVEAL_MAX_RANK);
  view.data = tensor->data;
  view.dtype = dtype_of(at, tensor->dtype);
  view.device = device_of(at, *tensor);
  view.rank = tensor->rank;
  std::copy_n(tensor->sizes, tensor->rank, view.sizes.begin());
  std::copy_n(tensor->strides, tensor->rank, view.strides.begin());
  return view;
}

// Declarations and expressions are cached by their text: equal texts share an expression, and what was compiled for it.

static Param param_of(const char* declaration) {
  static auto& cache = *new base::LruCache<Param>(256);  // never destroyed: destructors of static objects may make calls
  return *cache.find_or_make(declaration, [&] { return parse_param(declaration); });
}

static Expr expression_of(const char* argument, const char* text, const std::vector<Param>& params) {
  struct Parsed {
    std::vector<Param> params;  // kept alive: the key holds their addresses
    Expr expression;
  };
  static auto& cache = *new base::LruCache<Parsed>(256);
  std::string key = text;
  key += '\0';
  for (const Param& param : params) {
    const void* address = param.info().get();
    key.append(reinterpret_cast<const char*>(&address), sizeof(address));
  }
  return cache.find_or_make(key, [&] { return Parsed{params, scoring::parse(text, params, argument)}; })->expression;
}

void check_params(const foveal_call& call) {
  FOVEAL_CHECK(call.param_count >= 0, "call: param_count ", call.param_count, "; expected 0 or more");
  FOVEAL_CHECK(call.param_count == 0 || call.params != nullptr, "call: params is null; expected as many as param_count, ",
               call.param_count);
  for (int32_t i = 0; i < call.param_count; ++i) FOVEAL_CHECK(call.params[i].tensor != nullptr, "params: parameter ", i, " has no tensor");
}

std::vector<Param> params_of(const foveal_call& call) {
  check_params(call);
  std::vector<Param> params;
  for (int32_t i = 0; i < call.param_count; ++i) {
    FOVEAL_CHECK(call.params[i].declaration != nullptr, "params: parameter ", i, " has no declaration");
    params.push_back(param_of(call.params[i].declaration));
  }
  return params;
}

Attention attention_of(const foveal_attention* given, const std::vector<Param>& params) {
  const foveal_attention& a = of_this_version(given, "attention");
  Attention attention;
  if (a.score_mod != nullptr) attention.score_mod = expression_of("score_mod", a.score_mod, params);
  if (a.mask != nullptr) attention.mask = expression_of("mask", a.mask, params);
  if (a.scale != 0) attention.scale = a.scale;
  if (a.sink != nullptr) {
    const auto named = std::find_if(params.begin(), params.end(), [&](const Param& param) { return param.name() == a.sink; });
    FOVEAL_CHECK(named != params.end(), "sink: '", a.sink, "' is no parameter of the call");
    attention.sink = *named;
  }
  attention.dropout_p = a.dropout_p;
  attention.determinism = enumerator("determinism", a.determinism, Determinism::reproducible);
  attention.backward = enumerator("backward", a.backward, BackwardStrategy::two_scan);
  FOVEAL_CHECK(a.checked == 0 || a.checked == 1, "attention: checked ", a.checked, "; expected 0 or 1");
  attention.checked = a.checked == 1;
  attention.q_offset = a.q_offset, attention.kv_offset = a.kv_offset;
  return attention;
}

PlanOptions options_of(const foveal_options* given) {
  PlanOptions options;
  if (given == nullptr) return options;
  const foveal_options& o = of_this_version(given, "options");
  FOVEAL_CHECK(o.reserved == 0, "options: reserved ", o.reserved, "; expected 0");
  if (o.backend != nullptr) options.backend = o.backend;
  if (o.target != nullptr) options.target = o.target;
  if (o.exclude != nullptr) options.exclude = o.exclude;
  options.threads = o.threads;
  return options;
}

problem::Call by_role(const foveal_call& call, Pass pass, TensorViews& views) {
  static constexpr std::array given{
#define FOVEAL_PLACE(name, ...) &foveal_call::name,
      FOVEAL_ROLES(FOVEAL_PLACE)
#undef FOVEAL_PLACE
  };
  problem::Call tensors{.pass = pass};
  for (std::size_t i = 0; i < views.size(); ++i) {
    views[i] = view_of({problem::roles[i].name}, call.*given[i]);
    if (problem::roles[i].use(pass) == problem::Use::none) {
      FOVEAL_CHECK(!views[i].present(), problem::roles[i].name, ": given for a ", to_string(pass), " pass, which leaves it null");
      continue;
    }
    tensors.*problem::roles[i].given = &views[i];
  }
  return tensors;
}

bool accumulates(const foveal_attention* given) {
  const foveal_attention& a = of_this_version(given, "attention");
  FOVEAL_CHECK(a.accumulate == 0 || a.accumulate == 1, "attention: accumulate ", a.accumulate, "; expected 0 or 1");
  return a.accumulate == 1;
}

size_t write_text(const std::string& whole, char* text, size_t size) {
  if (text != nullptr && size > 0) {
    const size_t length = std::min(size - 1, whole.size());
    std::memcpy(text, whole.data(), length);
    text[length] = '\0';
  }
  return whole.size();
}

}  // namespace foveal::c
