#pragma once
// What must be alike on all ranks, and the tensors that a rank passes in.
#include <string>
#include <vector>

#include "dist/agreement.h"
#include "dist/context.h"

namespace foveal::dist {

/// A list of their names, types and shapes.
std::string text_of(const std::vector<ParamBinding>& params);
inline bool is_on_gpu(const TensorView& view) { return view.present() && view.device.kind == DeviceKind::cuda; }

/// Only the kind of call is compared; the text is for the error.
void add_call(Agreement& agreement, const std::string& kind, const std::string& text);
/// Everything that a plan is made from.
void add_plan(Agreement& agreement, const Context& c, const problem::Problem& problem, const std::vector<ParamBinding>& params);
/// Every rank must drop the same pairs. A state on a GPU is not compared: reading it would wait for the GPU.
void add_rng(Agreement& agreement, const Context& c, const DropoutRng& rng);

/// Every rank must have the same values. Those of a GPU are read once its stream has come to this pass.
void add_data(Agreement& agreement, const Context& c, const std::vector<ParamBinding>& params, Stream stream);

/// Of all values of the parameters that the mask reads: they decide who computes what.
std::uint64_t digest_of_mask(const Context& c, const std::vector<ParamBinding>& params);
/// Of a pass: shapes as declared, with data.
void check_params(const std::vector<ParamBinding>& params, const char* what);
void check_mask_data(const Context& c, const std::vector<ParamBinding>& params);

void check_shards(const Context& c, const ForwardInputs& in, const ForwardOutputs& out);
void check_shards(const Context& c, const BackwardInputs& in, const BackwardOutputs& out);

}  // namespace foveal::dist
