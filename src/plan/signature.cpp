#include "plan/signature.h"

#include <cstdint>

namespace foveal::planning {
namespace {

void add(Signature& signature, const std::vector<ParamBinding>* bindings) {
  signature.add(bindings == nullptr ? std::size_t{0} : bindings->size());
  if (bindings == nullptr) return;
  for (const ParamBinding& binding : *bindings) {
    signature.add(binding.param.info().get());
    signature.add(binding.tensor);
  }
}

}  // namespace

void Signature::add(const std::string& text) {
  add(text.size());
  out_ += text;
}

void Signature::add(const TensorView& view) {
  if (!view.present()) return add('-');
  const struct {
    std::int8_t rank, dtype, device, aligned;
    std::int32_t index;
  } look{static_cast<std::int8_t>(view.rank), static_cast<std::int8_t>(view.dtype), static_cast<std::int8_t>(view.device.kind),
         static_cast<std::int8_t>(problem::is_aligned(view)), view.device.index};
  out_.append(reinterpret_cast<const char*>(&look), sizeof(look));
  const std::size_t bytes = static_cast<std::size_t>(view.rank) * sizeof(std::int64_t);
  out_.append(reinterpret_cast<const char*>(view.sizes.data()), bytes);
  out_.append(reinterpret_cast<const char*>(view.strides.data()), bytes);
}

void Signature::add(const PlanOptions& options) {
  add(options.backend);
  add(options.target);
  add(options.exclude);
  add(options.threads == 0 ? num_threads() : options.threads);
  add(options.executor.get());
}

void write_signature(const Attention& attention, const problem::Call& call, const PlanOptions& options, std::string& out) {
  Signature signature(out);
  signature.add(call.pass);
  for (const problem::Role& role : problem::roles) {
    const TensorView* view = call.*role.given;
    signature.add(view == nullptr ? TensorView{} : *view);
  }
  add(signature, call.params);
  add(signature, call.dparams);
  signature.add(call.varlen != nullptr);
  if (call.varlen != nullptr) {
    signature.add(call.varlen->max_seqlen_q);
    signature.add(call.varlen->max_seqlen_kv);
  }
  signature.add(call.paged != nullptr);
  signature.add(call.segments != nullptr);
  if (call.segments != nullptr) {
    signature.add(call.segments->table);
    signature.add(call.segments->sequences);
    signature.add(call.segments->head_offset);
    signature.add(call.segments->heads_q);
  }
  signature.add(call.part != nullptr);
  if (call.part != nullptr) {
    signature.add(call.part->batch_offset);
    signature.add(call.part->head_offset);
    signature.add(call.part->heads_q);
    signature.add(call.part->seqlen_q);
    signature.add(call.part->seqlen_kv);
    signature.add(call.part->whole_rows);
    signature.add(call.part->spread_keys);
    signature.add(call.part->keeps_rows);
    signature.add(call.part->whole_keys);
    signature.add(call.part->first_query);
    signature.add(call.part->first_key);
  }
  signature.add(attention.score_mod.node().get());
  signature.add(attention.mask.node().get());
  signature.add(attention.scale.has_value());
  signature.add(attention.scale.value_or(0));
  signature.add(attention.sink ? attention.sink->info().get() : nullptr);
  signature.add(attention.dropout_p);
  signature.add(attention.determinism);
  signature.add(attention.backward);
  signature.add(attention.checked);
  signature.add(attention.q_offset);
  signature.add(attention.kv_offset);
  signature.add(options);
}

}  // namespace foveal::planning
