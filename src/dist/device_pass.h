#pragma once
// Both passes of one rank on a GPU.
#include <optional>
#include <string>

#include "dist/context.h"
#include "dist/device_rows.h"

namespace foveal::dist {

/// A segment as one launch, and what is there before it.
struct PartLaunch {
  std::size_t step = 0;
  Segment segment;
  bool adds_to_q = false, adds_to_kv = false;
  bool beside_transfers = false;  ///< runs while keys are on their way
};

/// In which order a rank launches its parts, and which rows no first part writes.
struct PartOrder {
  std::vector<PartLaunch> launches;
  std::vector<Range> clear_q;                ///< rows of the queries' buffer
  std::vector<std::vector<Range>> clear_kv;  ///< of each step's keys
};
/// Own keys first, then those that come. transfer_work: what a rank computes while keys arrive, in pairs of tokens; launches that begin
/// before it is done run beside transfers, and are cut so that not all of the own work does.
PartOrder part_order(const RankPlan& plan, std::int64_t transfer_work = 0);

/// The launches' plans, made once for tensors like these.
struct PartPlans {
  std::string signature;  ///< of the tensors
  std::vector<std::optional<Plan>> plans;
};

void run_forward(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers,
                 PartPlans& plans);
void run_backward(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
                  PartPlans& plans);

}  // namespace foveal::dist
