#include "check/device_case.h"

#include "api/backends.h"
#include "base/check.h"

namespace foveal::check {
namespace {

planning::DeviceMemory& memory_of(Device device) {
  for (const auto& backend : api::backends())
    if (backend->device_kind() == device.kind) return backend->memory(device);
  base::fail(ErrorCode::unsupported, "device: no backend of this build serves it");
}

}  // namespace

DeviceBytes::DeviceBytes(Device device, std::size_t bytes) : memory_(&memory_of(device)), data_(memory_->allocate(bytes)) {}
DeviceBytes::~DeviceBytes() { memory_->release(data_); }

DeviceCase::DeviceCase(problem::CaseData& data) : data_(data) {
  if (data.line().device.kind == DeviceKind::cpu) return;
  memory_ = &memory_of(data.line().device);
  for (const auto& [name, block] : data.blocks()) blocks_.push_back(memory_->allocate(block.size));
  upload();
}

DeviceCase::~DeviceCase() {
  for (void* block : blocks_) memory_->release(block);
}

void DeviceCase::upload() {
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    memory_->to_device(blocks_[i], data_.blocks()[i].second.bytes.get(), data_.blocks()[i].second.size);
}

void DeviceCase::download() {
  if (memory_ == nullptr) return;
  memory_->synchronize({});
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    memory_->to_host(data_.blocks()[i].second.bytes.get(), blocks_[i], data_.blocks()[i].second.size);
}

TensorView DeviceCase::moved(TensorView view) const {
  if (memory_ == nullptr || view.data == nullptr) return view;
  view.device = data_.line().device;
  const auto* data = static_cast<const std::byte*>(view.data);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const problem::CaseData::Block& block = data_.blocks()[i].second;
    if (data < block.bytes.get() || data >= block.bytes.get() + block.size) continue;
    view.data = static_cast<std::byte*>(blocks_[i]) + (data - block.bytes.get());
    break;
  }
  return view;
}

ForwardInputs DeviceCase::forward_inputs() const {
  ForwardInputs inputs = data_.forward_inputs();
  for (TensorView* view : {&inputs.q, &inputs.k, &inputs.v}) *view = moved(*view);
  for (ParamBinding& binding : inputs.params) binding.tensor = moved(binding.tensor);
  if (inputs.varlen) {
    inputs.varlen->cu_seqlens_q = moved(inputs.varlen->cu_seqlens_q);
    inputs.varlen->cu_seqlens_kv = moved(inputs.varlen->cu_seqlens_kv);
  }
  if (inputs.paged) {
    inputs.paged->block_table = moved(inputs.paged->block_table);
    inputs.paged->seqlens_kv = moved(inputs.paged->seqlens_kv);
  }
  inputs.rng.state = moved(inputs.rng.state);
  return inputs;
}

ForwardOutputs DeviceCase::forward_outputs() const {
  const ForwardOutputs outputs = data_.forward_outputs();
  return {.out = moved(outputs.out), .lse = moved(outputs.lse)};
}

BackwardInputs DeviceCase::backward_inputs() const {
  ForwardInputs forward = forward_inputs();
  const BackwardInputs inputs = data_.backward_inputs();
  return {.q = forward.q,
          .k = forward.k,
          .v = forward.v,
          .out = moved(inputs.out),
          .lse = moved(inputs.lse),
          .dout = moved(inputs.dout),
          .dlse = moved(inputs.dlse),
          .params = std::move(forward.params),
          .varlen = forward.varlen,
          .paged = forward.paged,
          .rng = forward.rng};
}

BackwardOutputs DeviceCase::backward_outputs() const {
  BackwardOutputs outputs = data_.backward_outputs();
  for (TensorView* view : {&outputs.dq, &outputs.dk, &outputs.dv}) *view = moved(*view);
  for (ParamBinding& binding : outputs.dparams) binding.tensor = moved(binding.tensor);
  return outputs;
}

}  // namespace foveal::check
