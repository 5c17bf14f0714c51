#include "plan/signature.h"

#include <cstring>
#include <type_traits>

namespace foveal::planning {
namespace {

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) { out_.clear(); }

  template <class T>
  requires std::is_scalar_v<T>
  void add(T value) {
    // NOLINTBEGIN(bugprone-sizeof-expression): of a pointer too
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out_.append(bytes, sizeof(T));
    // NOLINTEND(bugprone-sizeof-expression)
  }

  void add(const std::string& text) {
    add(text.size());
    out_ += text;
  }

  void add(const TensorView& view) {
    add(view.present());
    add(view.dtype);
    add(view.device.kind);
    add(view.device.index);
    add(problem::is_aligned(view));
    add(view.rank);
    for (int d = 0; d < view.rank; ++d) {
      add(view.sizes[static_cast<std::size_t>(d)]);
      add(view.strides[static_cast<std::size_t>(d)]);
    }
  }

  void add(const std::vector<ParamBinding>* bindings) {
    add(bindings == nullptr ? std::size_t{0} : bindings->size());
    if (bindings == nullptr) return;
    for (const ParamBinding& binding : *bindings) {
      add(binding.param.info().get());
      add(binding.tensor);
    }
  }

 private:
  std::string& out_;
};

}  // namespace

void write_signature(const Attention& attention, const problem::Call& call, const PlanOptions& options, std::string& out) {
  Writer writer(out);
  writer.add(call.pass);
  for (const problem::Role& role : problem::roles) {
    const TensorView* view = call.*role.given;
    writer.add(view != nullptr && view->present());
    if (view != nullptr && view->present()) writer.add(*view);
  }
  writer.add(call.params);
  writer.add(call.dparams);
  writer.add(call.varlen != nullptr);
  if (call.varlen != nullptr) {
    writer.add(call.varlen->max_seqlen_q);
    writer.add(call.varlen->max_seqlen_kv);
  }
  writer.add(call.paged != nullptr);
  writer.add(call.segments != nullptr);
  if (call.segments != nullptr) {
    writer.add(call.segments->table);
    writer.add(call.segments->sequences);
    writer.add(call.segments->head_offset);
    writer.add(call.segments->heads_q);
  }
  writer.add(call.part != nullptr);
  if (call.part != nullptr) {
    writer.add(call.part->batch_offset);
    writer.add(call.part->head_offset);
    writer.add(call.part->heads_q);
    writer.add(call.part->seqlen_q);
    writer.add(call.part->seqlen_kv);
  }
  writer.add(attention.score_mod.node().get());
  writer.add(attention.mask.node().get());
  writer.add(attention.scale.has_value());
  writer.add(attention.scale.value_or(0));
  writer.add(attention.sink ? attention.sink->info().get() : nullptr);
  writer.add(attention.dropout_p);
  writer.add(attention.determinism);
  writer.add(attention.backward);
  writer.add(attention.checked);
  writer.add(attention.q_offset);
  writer.add(attention.kv_offset);
  writer.add(options.backend);
  writer.add(options.target);
  writer.add(options.exclude);
  writer.add(options.threads == 0 ? num_threads() : options.threads);
  writer.add(options.executor.get());
}

std::string options_key(const PlanOptions& options) {
  std::string key;
  Writer writer(key);
  writer.add(options.backend);
  writer.add(options.target);
  writer.add(options.exclude);
  writer.add(options.threads == 0 ? num_threads() : options.threads);
  writer.add(options.executor.get());
  return key;
}

}  // namespace foveal::planning
