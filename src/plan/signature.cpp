#include "plan/signature.h"

#include <cstdint>

#include "base/check.h"

namespace foveal::planning {
namespace {

/// A signature holds as many sizes as the rank says, and is made before anything is checked.
void check_rank(const char* name, const TensorView& view) {
  FOVEAL_CHECK(view.rank >= 0 && view.rank <= TensorView::max_rank, name, ": rank ", view.rank, "; expected 0 to ", TensorView::max_rank);
}

void add(Signature& signature, const std::vector<ParamBinding>* bindings) {
  signature.add(bindings == nullptr ? std::size_t{0} : bindings->size());
  if (bindings == nullptr) return;
  for (const ParamBinding& binding : *bindings) {
    check_rank(binding.param.present() ? binding.param.name().c_str() : "params", binding.tensor);
    signature.add(binding.param.info().get(), binding.tensor);
  }
}

}  // namespace

void Signature::append(const TensorView& view) {
  if (!view.present()) return bytes_.append('-');
  const struct {
    std::int8_t rank, dtype, device, aligned;
    std::int32_t index;
  } header{static_cast<std::int8_t>(view.rank), static_cast<std::int8_t>(view.dtype), static_cast<std::int8_t>(view.device.kind),
           static_cast<std::int8_t>(problem::is_aligned(view)), view.device.index};
  bytes_.append_raw(&header, sizeof(header));
  const std::size_t bytes = static_cast<std::size_t>(view.rank) * sizeof(std::int64_t);
  bytes_.append_raw(view.sizes.data(), bytes);
  bytes_.append_raw(view.strides.data(), bytes);
}

void Signature::append(const PlanOptions& options) {
  add(options.backend, options.target, options.exclude, options.threads == 0 ? num_threads() : options.threads, options.executor.get());
}

void write_signature(const Attention& attention, const problem::Call& call, const PlanOptions& options, std::string& out) {
  Signature signature(out);
  signature.add(call.pass);
  for (const problem::Role& role : problem::roles) {
    const TensorView* view = call.*role.given;
    if (view != nullptr) check_rank(role.name, *view);
    signature.add(view == nullptr ? TensorView{} : *view);
  }
  add(signature, call.params);
  add(signature, call.dparams);
  signature.add(call.varlen != nullptr, call.paged != nullptr, call.segments != nullptr, call.part != nullptr);
  if (const Varlen* varlen = call.varlen) signature.add(varlen->max_seqlen_q, varlen->max_seqlen_kv);
  if (const Segments* segments = call.segments) {
    check_rank("segments.table", segments->table);
    signature.add(segments->table, segments->sequences, segments->head_offset, segments->heads_q);
  }
  if (const Part* part = call.part)
    signature.add(part->batch_offset, part->head_offset, part->heads_q, part->seqlen_q, part->seqlen_kv, part->whole_rows,
                  part->spread_keys, part->keeps_rows, part->whole_keys, part->first_query, part->first_key);
  signature.add(attention.score_mod.node().get(), attention.mask.node().get(), attention.scale.has_value(), attention.scale.value_or(0),
                attention.sink.has_value(), attention.sink ? attention.sink->info().get() : nullptr, attention.dropout_p,
                attention.determinism, attention.backward, attention.checked, attention.q_offset, attention.kv_offset, options);
}

}  // namespace foveal::planning
