// The C interface, over the public C++ one.
#include "foveal/foveal_c.h"

#include "api/c_values.h"
#include "foveal/version.h"

using namespace foveal;
using namespace foveal::c;

namespace {

const std::vector<TargetInfo>& all_targets() {
  static const auto& all = *new std::vector<TargetInfo>(targets());  // never destroyed: its strings live as long as the process
  return all;
}

}  // namespace

struct foveal_plan {
  Plan plan;
  std::vector<Param> params;
  bool accumulates;
  int threads;  ///< for accumulation; 0: all
};

extern "C" {

int foveal_plan_create(const foveal_attention* attention, const foveal_call* call, const foveal_options* options, foveal_plan** plan) {
  return guarded([&] {
    FOVEAL_CHECK(plan != nullptr, "plan: null; expected a place for the plan");
    *plan = nullptr;
    const foveal_call& own = of_this_version(call, "call");
    std::vector<Param> params = params_of(own);
    const Attention what = attention_of(attention, params);
    const PlanOptions how = options_of(options);
    Plan made;
    const bool accumulate = accumulates(attention);
    dispatch(own, params, [&]<class Inputs, class Outputs>(const Inputs& inputs, const Outputs& outputs) {
      if constexpr (std::is_same_v<Outputs, BackwardOutputs>) {
        if (accumulate) return void(made = foveal::plan(what, inputs, api::GradientSum(outputs).parts(), how));
      }
      made = foveal::plan(what, inputs, outputs, how);
    });
    *plan = new foveal_plan{std::move(made), std::move(params), accumulate, how.threads};
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
  return write_text(whole, text, size);
}

int foveal_plan_run(const foveal_plan* plan, const foveal_call* call, void* workspace, void* stream) {
  return guarded([&] {
    FOVEAL_CHECK(plan != nullptr, "plan: null");
    dispatch(of_this_version(call, "call"), plan->params, [&](const auto& inputs, const auto& outputs) {
      run_into(plan->accumulates, inputs, outputs, Stream{stream}, plan->threads,
               [&](const auto& in, const auto& out) { plan->plan.run(in, out, workspace, Stream{stream}); });
    });
  });
}

int foveal_run(const foveal_attention* attention, const foveal_call* call, const foveal_options* options, void* stream) {
  return guarded([&] {
    const foveal_call& own = of_this_version(call, "call");
    const std::vector<Param> params = params_of(own);
    const Attention what = attention_of(attention, params);
    const PlanOptions how = options_of(options);
    dispatch(own, params, [&](const auto& inputs, const auto& outputs) {
      run_into(accumulates(attention), inputs, outputs, Stream{stream}, how.threads,
               [&]<class Inputs, class Outputs>(const Inputs& in, const Outputs& out) {
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
    dtype_of({"tensor"}, dtype);
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
                 " heads; expected a positive multiple of the heads");
    const auto width = static_cast<int64_t>(size_of(dtype_of({"qkv"}, dtype)));
    int64_t bytes = 3 * width;
    for (const int64_t size : {batch, seqlen, channels})  // strides are products of sizes even where a tensor is empty
      FOVEAL_CHECK(!__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes), "qkv: more than 2^63 bytes");
    const int64_t head_dim = channels / heads;
    for (int i = 0; i < 3; ++i) {
      char* first = static_cast<char*>(data);
      if (first != nullptr) first += i * channels * width;
      qkv[i] = {.data = first,
                .dtype = dtype,
                .device_kind = FOVEAL_CPU,
                .device_index = 0,
                .rank = 4,
                .sizes = {batch, seqlen, heads, head_dim, 0, 0},
                .strides = {seqlen * 3 * channels, 3 * channels, head_dim, 1, 0, 0}};
    }
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

const char* foveal_last_error(void) { return last_error; }

const char* foveal_version(void) { return FOVEAL_VERSION; }

}  // extern "C"
