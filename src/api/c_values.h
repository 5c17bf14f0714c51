#pragma once
// Shared by the parts of the C interface: structs become C++ values, exceptions become codes.
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/gradient_sum.h"
#include "base/check.h"
#include "base/named.h"
#include "base/of_thread.h"
#include "foveal/foveal.h"
#include "foveal/foveal_c.h"
#include "problem/call.h"

namespace foveal::c {

/// The message of this thread's last failed call.
inline thread_local const char* last_error = "";

/// A field of C++ that has another name in C is named by the latter.
inline void set_last_error(const char* message) noexcept {
  struct LastError {
    std::string text;
  };
  try {
    constexpr std::string_view in_cxx = "rng.state", in_c = "dropout_state";
    std::string& text = base::of_thread<LastError>().text;
    text = message;
    for (auto at = text.find(in_cxx); at != std::string::npos; at = text.find(in_cxx, at)) text.replace(at, in_cxx.size(), in_c);
    last_error = text.c_str();
  } catch (...) {  // out of memory
    last_error = "out of memory";
  }
}

/// Runs fn; an exception becomes its code and this thread's last error.
template <class Fn>
int guarded(Fn&& fn) noexcept {
  try {
    fn();
    return FOVEAL_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    set_last_error(error.what());
  } catch (...) {
    set_last_error("an exception of another language or library");
  }
  return FOVEAL_INTERNAL;
}

/// A struct of the caller's, whose size says that it is of this version of the library.
template <class Struct>
const Struct& of_this_version(const Struct* given, const char* name) {
  FOVEAL_CHECK(given != nullptr, name, ": null");
  FOVEAL_CHECK(given->struct_size == sizeof(Struct), name, ": struct_size ", given->struct_size, "; expected sizeof(foveal_", name, "), ",
               sizeof(Struct), " in this version of the library");
  return *given;
}

template <class Enum>
Enum enumerator(const char* name, int32_t value, Enum last) {
  FOVEAL_CHECK(value >= 0 && value <= static_cast<int32_t>(last), name, ": ", value, "; expected 0 to ", static_cast<int>(last));
  return static_cast<Enum>(value);
}

using base::Named;
DType dtype_of(Named at, int32_t dtype);
/// Null is an absent tensor.
TensorView view_of(Named at, const foveal_tensor* tensor);
/// The call has as many parameters as it says, each with a tensor.
void check_params(const foveal_call& call);
std::vector<Param> params_of(const foveal_call& call);
Attention attention_of(const foveal_attention* given, const std::vector<Param>& params);
PlanOptions options_of(const foveal_options* given);
using TensorViews = std::array<TensorView, problem::role_table::all.size()>;
/// The call's tensors by role, stored in `views`. A forward pass ignores those of a backward one.
problem::Call by_role(const foveal_call& call, Pass pass, TensorViews& views);
bool accumulates(const foveal_attention* given);
/// Writes the text, truncated to `size`; returns its full length.
size_t write_text(const std::string& whole, char* text, size_t size);

/// Calls run(inputs, outputs) of the call's pass.
template <class Do>
void dispatch(const foveal_call& call, const std::vector<Param>& params, Do&& run) {
  const Pass pass = enumerator("call: pass", call.pass, Pass::backward);
  FOVEAL_CHECK(static_cast<std::size_t>(call.param_count) == params.size(), "call: ", call.param_count, " parameters; the plan has ",
               params.size());
  check_params(call);
  problem::CallRest rest{.max_seqlen_q = call.max_seqlen_q, .max_seqlen_kv = call.max_seqlen_kv};
  rest.params.reserve(params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    const char* name = params[i].name().c_str();
    rest.params.push_back({params[i], view_of({name}, call.params[i].tensor)});
    if (call.params[i].gradient != nullptr) rest.dparams.push_back({params[i], view_of(base::gradient_of(name), call.params[i].gradient)});
  }
  rest.rng = {.seed = call.dropout_seed, .offset = call.dropout_offset, .state = view_of({"dropout_state"}, call.dropout_state)};
  TensorViews views;
  problem::with_arguments(by_role(call, pass, views), std::move(rest), std::forward<Do>(run));
}

/// Calls run(inputs, outputs); with `accumulate`, adds its gradients to those of the call, on this many threads (0: all) or on the stream.
template <class Inputs, class Outputs, class Run>
void run_into(bool accumulate, const Inputs& inputs, const Outputs& outputs, Stream stream, int threads, Run&& run) {
  if constexpr (std::is_same_v<Outputs, BackwardOutputs>) {
    if (accumulate) {
      api::GradientSum sum(outputs);
      sum.allocate(inputs, stream);
      run(inputs, sum.parts());
      sum.add(threads, stream);
      return;
    }
  }
  run(inputs, outputs);
}

}  // namespace foveal::c
