#include "base/key_bytes.h"
#include "problem/call.h"

namespace foveal::problem {

std::string key_of(const Problem& p) {
  std::string key;
  base::KeyBytes bytes(key);
  const auto add = [&](const auto&... values) { (bytes.append(values), ...); };
  const auto add_spec = [&](const TensorSpec& spec) {
    add(spec.present);
    if (!spec.present) return;
    add(spec.dtype, static_cast<std::int8_t>(spec.rank), spec.aligned);
    const std::size_t count = static_cast<std::size_t>(spec.rank) * sizeof(std::int64_t);
    bytes.append_raw(spec.sizes.data(), count), bytes.append_raw(spec.strides.data(), count);
  };
  add(p.pass, p.device.kind, p.device.index, p.seqlen_q, p.seqlen_kv, p.sequences);
  add(p.varlen, p.paged, p.gathered, p.segments, p.any_length, p.part);
  if (p.segments || p.part) add(p.batch, p.batch_offset, p.head_offset, p.heads_all);
  if (p.part) add(p.whole_rows, p.spread, p.keeps_rows, p.whole_keys, p.first_query, p.first_key, p.queries_of_whole, p.keys_of_whole);
  for (const Role& role : roles) add_spec(p.*role.spec);
  for (const ParamSpec& param : p.params) add(param.param.name()), add_spec(param.tensor), add_spec(param.gradient);
  const Attention& a = p.attention;
  add(p.score->text, p.sink, p.scale, a.scale.has_value(), a.dropout_p, a.determinism, a.backward, a.checked, a.q_offset, a.kv_offset);
  return key;
}

}  // namespace foveal::problem
