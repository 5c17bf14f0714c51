#pragma once
// Forward and backward pass of one rank on a GPU. A launch is one part: rows of queries against rows of keys with
// their global positions, which its kernels merge into out and lse, or add to dq, dk and dv. Work is in the order of
// the caller's stream; messages travel beside it.
#include <optional>
#include <string>

#include "dist/context.h"
#include "dist/device_rows.h"
#include "dist/part_order.h"
#include "dist/rank_pass.h"

namespace foveal::dist {

/// The launches of a pass and their plans, made once for tensors of one signature.
struct PartPlans {
  std::string signature;
  PartOrder order;
  std::vector<std::optional<Plan>> plans;
  std::vector<cuda::driver::Memory> cu_seqlens;  ///< i32, of launches of closed sequences
  bool is_made() const { return !signature.empty(); }
};

/// Warm-up (DeviceBuffers::warms_up): plans, loads kernels and allocates for these tensors, once for each signature. Otherwise runs the
/// pass, which was warmed up before. A warm-up may wait for the GPU: ranks that share one all warm up before any of them runs.
void run_pass(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers, PartPlans& plans);
void run_pass(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
              PartPlans& plans);

/// What both passes share: the launches and their plans, and the keys on their way.
class DevicePass : protected RankPass {
 public:
  DevicePass(const Context& context, DeviceBuffers& buffers, PartPlans& plans)
      : RankPass(context, buffers), buffers_(buffers), plans_(plans) {}

 protected:
  using Lane = DeviceBuffers::Lane;

  /// Runs fn, unless this is a warm-up and the last one was for such tensors.
  template <class Fn>
  void run_or_warm_up(std::initializer_list<const TensorView*> tensors, std::initializer_list<const std::vector<ParamBinding>*> params,
                      Fn&& fn) {
    if (!buffers_.warms_up()) return fn();
    std::string signature = signature_of(tensors, params);
    if (plans_.signature == signature) return;
    plans_.signature.clear();  // stays so when fn throws
    fn();
    plans_.signature = std::move(signature);
  }

  /// Orders the launches and drops all plans.
  const PartOrder& order_by(const OrderRequest& request);
  struct PassKind {
    bool forward = false;
    bool trains = false;  ///< gradients of parameters are wanted, which are not summed over packed sequences
  };
  OrderRequest request_for(PassKind kind) const;

  template <class Inputs, class Outputs>
  void launch(std::size_t number, const Inputs& inputs, const Outputs& outputs) {
    const Plan& plan = this->plan(number, inputs, outputs);
    void* workspace = buffers_.workspace(plan.workspace_bytes());
    if (!buffers_.warms_up()) plan.run(inputs, outputs, workspace, buffers_.stream());
  }
  template <class Inputs, class Outputs>
  const Plan& plan(std::size_t number, const Inputs& inputs, const Outputs& outputs) {
    std::optional<Plan>& plan = plans_.plans[number];
    if (!plan) {
      const PartLaunch& part = plans_.order.launches[number];
      const cuda::driver::DeviceFacts facts = facts_for(part);
      const cuda::driver::Redirected fewer(cuda::driver::api(), facts);
      plan = foveal::plan(attention_of(part, std::is_same_v<Inputs, ForwardInputs>), inputs, outputs, c_.options.plan);
    }
    return *plan;
  }

  bool by_copy_engines() const { return c_.transport->carries_device_memory() && c_.transport->multiprocessors() == 0; }
  bool in_place() const { return c_.plan.head_groups == 1; }
  /// Are the step's rows those of the shard, in the same order?
  bool in_place(std::size_t step) const { return in_place() && step == 0 && c_.mine.steps[0].rows == c_.plan.kv.tokens(c_.rank()); }

  TensorView tensor(const Rows& rows, Range tokens) const { return tensor_of(rows.slice(tokens), buffers_.device()); }
  TensorView statistics(const Rows& rows, Range tokens) const { return statistics_tensor(rows.slice(tokens), buffers_.device()); }
  TensorView packed(const Rows& rows, const Segment& s) const { return packed_tensor(rows.slice(s.rows()), buffers_.device()); }
  TensorView packed_stats(const Rows& rows, const Segment& s) const { return packed_statistics(rows.slice(s.rows()), buffers_.device()); }
  Varlen closed_sequences(std::size_t number) const;
  Part part_of(std::size_t number) const;

  /// Keys and values of a step. Those of the steps after the first lie one after the other in what is received.
  struct Keys {
    Rows k, v;
    std::int64_t first_row = 0;  ///< of what is received
    std::size_t gather = 0;      ///< by which of gathers_ they come
  };
  struct KeyGather {
    Gather gather;
    bool waits = false;
  };
  struct GatherUse {
    bool at_once = false;    ///< one gather for all steps after the first
    bool in_slices = false;  ///< heads may come in groups
  };
  /// Starts the gathers.
  void gather_keys(const Rows& k_shard, const Rows& v_shard, GatherUse use);
  KeyGather& gather_of(std::size_t step) { return gathers_[keys_[step].gather]; }
  void arrive(std::size_t step) {
    KeyGather& of_step = gather_of(step);
    if (of_step.waits) finish(of_step.gather);
    of_step.waits = false;
  }

  std::vector<Keys> keys_;  ///< of each step
  Rows k_received_, v_received_;
  DeviceBuffers& buffers_;
  PartPlans& plans_;

 private:
  void gather_at_once(const Rows& k_shard, const Rows& v_shard, bool in_slices);
  static std::string signature_of(std::initializer_list<const TensorView*> tensors,
                                  std::initializer_list<const std::vector<ParamBinding>*> params);
  cuda::driver::DeviceFacts facts_for(const PartLaunch& launch) const;
  Attention attention_of(const PartLaunch& launch, bool forward) const;

  std::vector<KeyGather> gathers_;
};

}  // namespace foveal::dist
