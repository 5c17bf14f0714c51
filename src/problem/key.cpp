#include "problem/call.h"

namespace foveal::problem {

std::string key_of(const Problem& p) {
  std::string key = p.line();
  const auto add = [&key](std::int64_t number) { key += ' ' + std::to_string(number); };
  const auto add_spec = [&](const TensorSpec& spec) {
    if (!spec.present) {
      key += " -";
      return;
    }
    key += ' ';
    key += to_string(spec.dtype);
    if (!spec.aligned) key += '*';
    for (int d = 0; d < spec.rank; ++d) add(spec.strides[static_cast<std::size_t>(d)]);
  };
  key += " |";
  add(static_cast<int>(p.device.kind)), add(p.device.index), add(p.total_q), add(p.total_kv);
  if (p.paged) key += " paged", add(p.block_table.sizes[1]);
  if (p.segments) key += " segments", add(p.batch), add(p.sequences), add(p.head_offset), add(p.heads_all);
  if (p.part)
    key += " part", add(p.batch_offset), add(p.head_offset), add(p.heads_all), add(p.whole_rows), add(p.spread), add(p.keeps_rows),
        add(p.whole_keys), add(p.first_query), add(p.queries_of_whole), add(p.first_key), add(p.keys_of_whole);
  for (const Role& role : roles) add_spec(p.*role.spec);
  for (const ParamSpec& param : p.params) add_spec(param.tensor), add_spec(param.gradient);
  return key;
}

}  // namespace foveal::problem
