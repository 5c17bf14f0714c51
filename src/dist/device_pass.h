#pragma once
// Both passes of one rank on a GPU.
#include <optional>
#include <string>

#include "dist/context.h"
#include "dist/device_rows.h"
#include "dist/part_order.h"

namespace foveal::dist {

/// The launches' plans, made once for tensors like these.
struct PartPlans {
  std::string signature;  ///< of the tensors
  PartOrder order;
  std::vector<std::optional<Plan>> plans;
  std::vector<cuda::driver::Memory> cu_seqlens;  ///< i32, of launches of closed sequences
};

/// Before tensors that look like none before: plans, kernels and memory of the pass, all of which may wait for the GPU. To be called before any rank's part of the pass is
/// under way where ranks share a GPU; otherwise before this rank's.
void rehearse_forward(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers,
                      PartPlans& plans);
void rehearse_backward(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
                       PartPlans& plans);

/// After a rehearsal with tensors like these.
void run_forward(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers,
                 PartPlans& plans);
void run_backward(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
                  PartPlans& plans);

}  // namespace foveal::dist
